//! The number type that trains fastest on a kind of processor: `runtime.precision = "auto"`.
//!
//! It follows from a table of measurements, not from a measurement of the moment: the same machine and seed give the
//! same bits.

use std::ops::RangeInclusive;

use crate::choice::choice;
use crate::device::processor::Processor;
use crate::ops::matmul::Precision;

choice! {
    /// `runtime.precision`.
    pub enum WantedPrecision {
        /// The fastest on this kind of processor.
        Auto = "auto",
        /// [`Precision::F32`].
        F32 = "f32",
        /// [`Precision::Bf16`].
        Bf16 = "bf16",
    }
}

impl From<Precision> for WantedPrecision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

impl WantedPrecision {
    /// The number type on a processor.
    pub fn on(self, processor: &Processor) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Auto => fastest(processor).0,
        }
    }
}

/// How fast bfloat16 trained on a kind of processor, compared with float32. The figures are in docs/benchmarks.md.
struct Measured {
    vendor: &'static str,
    family: u32,
    models: RangeInclusive<u32>,
    /// Of a tiny model and of a base model.
    speed: [f64; 2],
}

/// Without AMX.
const MEASURED: &[Measured] = &[
    // Zen 4: EPYC 9004.
    Measured { vendor: "AuthenticAMD", family: 25, models: 0x10..=0x1f, speed: [1.60, 1.87] },
    // Emerald Rapids: Xeon of the fifth generation.
    Measured { vendor: "GenuineIntel", family: 6, models: 207..=207, speed: [0.82, 0.65] },
];

fn measured(processor: &Processor) -> Option<&'static Measured> {
    let is_it = |row: &&Measured| {
        row.vendor == processor.vendor && row.family == processor.family && row.models.contains(&processor.model)
    };
    MEASURED.iter().find(is_it)
}

/// The faster number type on this machine's processor, and why.
pub fn fastest(processor: &Processor) -> (Precision, String) {
    faster(processor, Precision::Bf16.is_native())
}

fn faster(processor: &Processor, has_bf16: bool) -> (Precision, String) {
    if !has_bf16 {
        return (Precision::F32, "this processor has no instructions for bfloat16 products".to_owned());
    }
    match measured(processor) {
        None => (Precision::F32, "bfloat16 was not measured on this kind of processor".to_owned()),
        Some(Measured { speed: [tiny, base], .. }) => {
            let precision = if tiny.min(*base) > 1.0 { Precision::Bf16 } else { Precision::F32 };
            (precision, format!("bf16 was measured {tiny} to {base} times as fast as f32 on this kind of processor"))
        }
    }
}

/// A warning, where bfloat16 trains more slowly than float32 on this processor.
pub fn warning(processor: &Processor) -> Option<String> {
    let Measured { speed: [tiny, base], .. } = measured(processor)?;
    // AMX computes it otherwise than what was measured.
    (tiny.min(*base) < 1.0 && Precision::Bf16.is_native() && !Precision::Bf16.is_by_amx()).then(|| {
        format!(
            "runtime.precision = \"bf16\" was measured {tiny} (tiny) and {base} (base) times as fast as \"f32\" on \
             this kind of processor: give \"f32\", or \"auto\""
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processor(vendor: &str, family: u32, model: u32) -> Processor {
        Processor { name: String::new(), vendor: vendor.to_owned(), family, model }
    }

    #[test]
    fn measurements_decide() {
        for (vendor, family, model, has_bf16, precision, why) in [
            ("AuthenticAMD", 25, 17, true, Precision::Bf16, "1.6 to 1.87 times"),
            ("AuthenticAMD", 25, 17, false, Precision::F32, "no instructions"),
            ("AuthenticAMD", 25, 1, true, Precision::F32, "not measured"),
            ("GenuineIntel", 6, 207, true, Precision::F32, "0.82 to 0.65 times"),
            ("GenuineIntel", 6, 143, true, Precision::F32, "not measured"),
        ] {
            let (found, says) = faster(&processor(vendor, family, model), has_bf16);
            assert!(found == precision && says.contains(why), "{vendor} {family} {model}: {found}, {says}");
        }
        assert_eq!(WantedPrecision::Bf16.on(&processor("", 0, 0)), Precision::Bf16);
    }
}
