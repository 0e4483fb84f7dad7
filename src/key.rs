//! The keys of the configuration, and the values they may hold.

use std::ops::RangeInclusive;

/// One key of a table.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// Its name.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: Kind,
    /// Whether its table must have it.
    pub required: bool,
    /// What another value means for a run that is continued; `None` means the same as for the table that holds the
    /// key.
    pub on_resume: Option<OnResume>,
    /// What depends on it.
    pub decides: &'static [Decides],
}

/// What it means for a run that is continued if a key has another value than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// The run would be another training: `--force` is needed.
    Refused,
    /// Nothing: no update computes anything else.
    Free,
    /// It affects further training, which may be intended: a note says so.
    Noted,
    /// It would have no effect, since the run has its vocabulary already: not even `--force` helps.
    NoEffect,
    /// The same once the run has a checkpoint, since it has its parameters then; before, `--force` is needed.
    AtStart,
}

/// What may depend on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decides {
    /// Which parameters the model has, and how large they are.
    Shape,
    /// What the model computes from its parameters when it translates.
    Function,
    /// Which batches an epoch has, for the same text.
    Batches,
    /// The value of a validation, for the same model and text.
    Validation,
    /// Which pairs of the training text are left out.
    Filter,
    /// Nothing of a run's final model: only where something is computed or lies, what is shown or kept on the way, or
    /// how the model translates later.
    NoModel,
}

/// The kind of a key's values.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A whole number from `least` to `most`.
    Integer { least: i128, most: i128 },
    /// A whole number of updates, at least `least`, or of epochs: "1 epoch".
    Interval { least: u64 },
    /// A whole number, positive and even.
    Even { most: i128 },
    /// A finite number within a range.
    Number(Range),
    /// Two finite numbers within a range.
    Pair(Range),
    /// One of these names.
    Choice(&'static [&'static str]),
    /// `auto`, `cpu`, `cuda`, `cuda:N`, `metal`.
    Device,
    /// Text that is not empty.
    Text,
    /// A list of such texts.
    Texts,
    /// A list of at most `most` whole numbers, each from 0 to `most`.
    Integers { most: i128 },
    /// A path relative to the file that states it.
    Path,
    /// A path as [`Kind::Path`], or `hf:ORG/NAME`.
    Model,
    /// A path relative to `data.root` if that is set, otherwise to the file that states it.
    Corpus,
    /// Such a path; if the table has a key `hub`, the name of a column instead, if `tsv`, its number.
    Side,
    /// A table with these keys.
    Table(&'static [Key]),
    /// A list of tables with these keys.
    List(&'static [Key]),
    /// A table whose `kind` decides its other keys.
    Tagged { default: &'static str, variants: &'static [Variant] },
}

/// One `kind` of a tagged table.
pub(crate) struct Variant {
    /// The value of `kind`.
    pub kind: &'static str,
    /// The keys beside `kind`.
    pub keys: &'static [Key],
}

/// The numbers a key may hold.
#[derive(Clone, Copy)]
pub(crate) enum Range {
    /// 0 ≤ x < 1.
    Fraction,
    /// A learning rate, or what multiplies one: 1e-38 ≤ x ≤ 1e38, since updates are computed in f32.
    Rate,
    /// 0, or as [`Range::Rate`].
    RateOr0,
    /// 0 < x < 1.
    Factor,
    /// 0 < x ≤ 1.
    Share,
    /// 0 < x ≤ 10⁶: how often an epoch draws a pair.
    Weight,
    /// x ≥ 0.
    NonNegative,
    /// x = 0 or x ≥ 1.
    OffOrRatio,
    /// 0 ≤ x ≤ 0.9999999: distinguishable from one in f32.
    Decay,
    /// 1e-30 ≤ x ≤ 1: distinguishable from zero in f32.
    Epsilon,
    /// -this ≤ x ≤ this.
    Around0(f64),
}

/// Values that stay apart from 0 and from infinity in f32.
const RATES: RangeInclusive<f64> = 1e-38..=1e38;

impl Range {
    /// Whether `x`, a finite number, is within.
    pub(crate) fn holds(self, x: f64) -> bool {
        match self {
            Self::Fraction => (0.0..1.0).contains(&x),
            Self::Rate => RATES.contains(&x),
            Self::RateOr0 => x == 0.0 || RATES.contains(&x),
            Self::Factor => x > 0.0 && x < 1.0,
            Self::Share => x > 0.0 && x <= 1.0,
            Self::Weight => x > 0.0 && x <= 1e6,
            Self::NonNegative => x >= 0.0,
            Self::OffOrRatio => x == 0.0 || x >= 1.0,
            Self::Decay => (0.0..=0.999_999_9).contains(&x),
            Self::Epsilon => (1e-30..=1.0).contains(&x),
            Self::Around0(most) => (-most..=most).contains(&x),
        }
    }

    /// Completes "must be …".
    pub(crate) fn describe(self) -> String {
        let words = match self {
            Self::Fraction => "at least 0 and below 1",
            Self::Rate => "at least 1e-38 and at most 1e38 (a float32)",
            Self::RateOr0 => "0, or at least 1e-38 and at most 1e38 (a float32)",
            Self::Factor => "above 0 and below 1",
            Self::Share => "above 0 and at most 1",
            Self::Weight => "above 0 and at most 1000000",
            Self::NonNegative => "at least 0",
            Self::OffOrRatio => "0 (off), or at least 1",
            Self::Decay => "at least 0 and at most 0.9999999",
            Self::Epsilon => "at least 1e-30 and at most 1",
            Self::Around0(most) => return format!("at least -{most} and at most {most}"),
        };
        words.to_owned()
    }
}

impl Kind {
    /// Whether the key holds text, so that `--set key=VALUE` needs no quotes.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self, Self::Choice(_) | Self::Device | Self::Text | Self::Path | Self::Corpus | Self::Side)
    }
}

/// A key that may be left out.
pub(crate) const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, required: false, on_resume: None, decides: &[] }
}

/// A key that its table must have.
pub(crate) const fn required(name: &'static str, kind: Kind) -> Key {
    Key { required: true, ..key(name, kind) }
}

impl Key {
    /// Says what another value means for a run that is continued.
    pub(crate) const fn on_resume(self, on_resume: OnResume) -> Self {
        Self { on_resume: Some(on_resume), ..self }
    }

    /// Says what depends on the key.
    pub(crate) const fn decides(self, decides: &'static [Decides]) -> Self {
        Self { decides, ..self }
    }
}

/// A whole number from `least` up.
pub(crate) const fn at_least(least: i128) -> Kind {
    Kind::Integer { least, most: i64::MAX as i128 }
}

pub(crate) const COUNT: Kind = at_least(0);
pub(crate) const POSITIVE: Kind = at_least(1);
/// Widths and depths no machine could hold are typing errors; the bound also keeps products of widths from overflowing.
pub(crate) const WIDTH: i128 = 1 << 20;
pub(crate) const WIDTH_KEY: Kind = Kind::Integer { least: 1, most: WIDTH };
pub(crate) const MOST_LAYERS: i128 = 1000;
pub(crate) const LAYERS: Kind = Kind::Integer { least: 1, most: MOST_LAYERS };
pub(crate) const FRACTION: Kind = Kind::Number(Range::Fraction);
/// 1e-30 ≤ x ≤ 1
pub(crate) const EPSILON: Kind = Kind::Number(Range::Epsilon);
pub(crate) const RATE: Kind = Kind::Number(Range::Rate);
pub(crate) const RATE_OR_0: Kind = Kind::Number(Range::RateOr0);
pub(crate) const NOT_NEGATIVE: Kind = Kind::Number(Range::NonNegative);
