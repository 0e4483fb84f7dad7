//! How often something is done in training: every so many updates or epochs.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::Error;

/// `500` updates, or `"2 epochs"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// This many updates; 0: never.
    Updates(u64),
    /// This many passes over the training data.
    Epochs(u64),
}

impl Interval {
    /// Whether it never comes.
    pub fn is_never(self) -> bool {
        self == Self::Updates(0)
    }

    /// Whether it is over after update `step`, before which `before` epochs were complete, and now `after` are.
    pub fn is_over(self, step: u64, [before, after]: [u64; 2]) -> bool {
        match self {
            Self::Updates(0) | Self::Epochs(0) => false,
            Self::Updates(every) => step > 0 && step.is_multiple_of(every),
            Self::Epochs(every) => after / every > before / every,
        }
    }

    /// The first update after which it is over, as far as that is known without the data.
    pub fn first(self) -> Option<u64> {
        match self {
            Self::Updates(every) => Some(every),
            Self::Epochs(_) => None,
        }
    }
}

impl Display for Interval {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Updates(every) => write!(f, "{every}"),
            Self::Epochs(1) => write!(f, "1 epoch"),
            Self::Epochs(every) => write!(f, "{every} epochs"),
        }
    }
}

impl FromStr for Interval {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = match text.trim().split_once(' ') {
            Some((number, "epoch" | "epochs")) => number.parse().ok().filter(|number| *number > 0),
            _ => None,
        };
        let help = "write a number of updates, such as 500; or epochs in quotes, such as \"1 epoch\"";
        number.map(Self::Epochs).ok_or_else(|| Error::usage(format!("\"{text}\" is no interval")).help(help))
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Updates(every) => serializer.serialize_u64(*every),
            Self::Epochs(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnInterval;
        impl Visitor<'_> for AnInterval {
            type Value = Interval;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "a number of updates, or \"N epochs\"")
            }

            fn visit_u64<E: de::Error>(self, every: u64) -> Result<Interval, E> {
                Ok(Interval::Updates(every))
            }

            fn visit_i64<E: de::Error>(self, every: i64) -> Result<Interval, E> {
                u64::try_from(every).map(Interval::Updates).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(AnInterval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_and_epochs_are_written_as_they_are_read() {
        for (text, interval, shown) in [
            ("500", Interval::Updates(500), "500"),
            ("0", Interval::Updates(0), "0"),
            ("\"1 epoch\"", Interval::Epochs(1), "1 epoch"),
            ("\"1 epochs\"", Interval::Epochs(1), "1 epoch"),
            ("\"12 epochs\"", Interval::Epochs(12), "12 epochs"),
        ] {
            let read: Interval = serde_json::from_str(text).unwrap();
            assert_eq!((read, read.to_string().as_str()), (interval, shown));
            assert_eq!(serde_json::from_str::<Interval>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
        }
        for text in ["\"epoch\"", "\"0 epochs\"", "\"1 day\"", "\"1\"", "\"-1 epochs\"", "-1", "1.5", "true"] {
            assert!(serde_json::from_str::<Interval>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_of_epochs_is_over_when_one_is_complete() {
        let updates = |step| Interval::Updates(3).is_over(step, [0, 1]);
        assert_eq!([0, 1, 3, 4, 6].map(updates), [false, false, true, false, true]);
        assert!(!Interval::Updates(0).is_over(3, [0, 1]));
        let epochs = |every: u64, done: [u64; 2]| Interval::Epochs(every).is_over(7, done);
        assert!(epochs(1, [0, 1]) && epochs(1, [4, 5]) && epochs(2, [1, 2]) && epochs(2, [1, 4]));
        assert!(!epochs(1, [1, 1]) && !epochs(2, [0, 1]) && !epochs(2, [2, 3]));
    }
}
