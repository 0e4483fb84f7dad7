//! Enumerations whose variants have names in a configuration. Each is defined in the module that implements it, the
//! only place that spells its names.

use crate::error::Error;

/// An enumeration whose variants have names in a configuration.
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The names a configuration may use, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The variant of that name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.name() == name)
            }

            /// The variant that a flag names.
            ///
            /// # Errors
            /// No variant has that name.
            pub fn from_flag(flag: &str, name: &str) -> crate::error::Result<Self> {
                Self::named(name).ok_or_else(|| crate::choice::not_among(flag, name, Self::NAMES))
            }

            /// The name as a configuration writes it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use choice;

/// The error for a flag whose value is not one of these.
pub(crate) fn not_among(flag: &str, value: &str, names: &[&str]) -> Error {
    Error::usage(format!("invalid value `{value}` for {flag}")).help(format!("one of {}", names.join(", ")))
}
