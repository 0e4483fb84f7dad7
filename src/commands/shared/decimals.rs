//! Log-probabilities and scores as text.

/// A log-probability or score with six decimals. A number below 0.1 has six significant digits, so that small numbers
/// differ and keep their order. Numbers below a millionth have an exponent (`-1.25000e-9`).
pub(crate) fn decimals(value: f64) -> String {
    const DIGITS: usize = 6;
    // There is no negative zero in it.
    let value = value + 0.0;
    match value.abs() {
        size if size == 0.0 || size >= 0.1 || size.is_nan() => format!("{value:.DIGITS$}"),
        size if size >= 1e-6 => {
            let zeros = (-size.log10()).ceil() as usize - 1;
            format!("{value:.*}", DIGITS + zeros)
        }
        _ => format!("{value:.*e}", DIGITS - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_keep_their_digits() {
        for (value, text) in [
            (0.0, "0.000000"),
            (-0.0, "0.000000"),
            (-1.0 / 3.0, "-0.333333"),
            (-12.345_678_9, "-12.345679"),
            (-0.1, "-0.100000"),
            (-0.012_345_678, "-0.0123457"),
            (-0.001, "-0.00100000"),
            (-1.5e-6, "-0.00000150000"),
            (-1e-6, "-0.00000100000"),
            (-9.536_743e-7, "-9.53674e-7"),
            (-1.25e-9, "-1.25000e-9"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(decimals(value), text);
        }
    }

    #[test]
    fn what_is_printed_keeps_the_order() {
        let mut value = -30.0;
        let mut before = f64::NEG_INFINITY;
        while value < -1e-12 {
            let printed: f64 = decimals(value).parse().unwrap();
            assert!(printed > before && (printed - value).abs() <= 1e-5 * value.abs(), "{value}: {printed}");
            (before, value) = (printed, value * 0.999);
        }
    }
}
