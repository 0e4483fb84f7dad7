//! Enumerations with names in a configuration. Each stands in the module that implements it, the one place that spells
//! its names.

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

            /// The variant of that name.
            pub fn named(name: &str) -> Option<Self> {
                [$(Self::$variant),+].into_iter().find(|variant| variant.name() == name)
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
