//! A list of integers that costs four bytes each for as long as they fit.

/// A growing list of integers, narrow until one needs more than 32 bits. Offsets into a text or a token list stay
/// narrow up to four billion bytes or tokens.
#[derive(Clone, Debug)]
pub(super) enum CompactVec {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl CompactVec {
    pub(super) fn new() -> Self {
        Self::Narrow(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Narrow(values) => values.len(),
            Self::Wide(values) => values.len(),
        }
    }

    pub(super) fn push(&mut self, value: usize) {
        match self {
            Self::Wide(values) => values.push(value as u64),
            Self::Narrow(values) => match u32::try_from(value) {
                Ok(value) => values.push(value),
                Err(_) => {
                    let mut wide: Vec<u64> = values.iter().map(|&value| u64::from(value)).collect();
                    wide.push(value as u64);
                    *self = Self::Wide(wide);
                }
            },
        }
    }

    /// The value at `index`. Panics past the end, as a slice does.
    #[inline]
    pub(super) fn get(&self, index: usize) -> usize {
        match self {
            Self::Narrow(values) => values[index] as usize,
            Self::Wide(values) => values[index] as usize,
        }
    }

    pub(super) fn shrink(&mut self) {
        match self {
            Self::Narrow(values) => values.shrink_to_fit(),
            Self::Wide(values) => values.shrink_to_fit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_when_a_value_needs_it() {
        let values = [3, u32::MAX as usize, u32::MAX as usize + 1, 7];
        let mut list = CompactVec::new();
        for (i, &value) in values.iter().enumerate() {
            list.push(value);
            assert_eq!(matches!(list, CompactVec::Wide(_)), i >= 2);
        }
        assert_eq!(list.len(), 4);
        assert_eq!((0..4).map(|i| list.get(i)).collect::<Vec<_>>(), values);
    }
}
