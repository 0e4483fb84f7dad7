//! Pictures for papers and slides: SVG drawn by `plotters`, and PNG made from it by `resvg`.
//!
//! | What is drawn | Module |
//! |---|---|
//! | a translation explained | [`sentence`] |
//! | the curves of runs | [`curves`] |
//!
//! An SVG only names typefaces; its viewer provides them. For a PNG the program has one of its own, and takes missing
//! letters from those of the system.
//!
//! A build without the feature `pictures` draws none.

#[cfg(feature = "pictures")]
pub mod curves;
#[cfg(feature = "pictures")]
mod png;
#[cfg(feature = "pictures")]
pub mod sentence;
#[cfg(feature = "pictures")]
mod sketch;
#[cfg(not(feature = "pictures"))]
mod without;

use std::path::Path;

use crate::console::message;
use crate::error::Result;
#[cfg(feature = "pictures")]
pub use png::png;
#[cfg(not(feature = "pictures"))]
pub use without::{curves, png, sentence};

/// The most letters without a typeface that a message lists.
const MOST_NAMED: usize = 12;

/// A picture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A vector graphic.
    Svg,
    /// Pixels.
    Png,
}

impl Format {
    /// The format by a file's extension; `None` if it is not a picture.
    pub fn from_path(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Self::Svg),
            "png" => Some(Self::Png),
            _ => None,
        }
    }

    /// A drawing in this format, for `file`. Prints a message if there are letters that could not be drawn.
    ///
    /// # Errors
    /// It is too large for a PNG.
    pub fn encode(self, svg: String, file: &Path) -> Result<Vec<u8>> {
        if self == Self::Svg {
            return Ok(svg.into_bytes());
        }
        let (png, boxes) = png(&svg).map_err(|error| error.at(file))?;
        if !boxes.is_empty() {
            let letters: String = boxes.iter().take(MOST_NAMED).collect();
            let more = if boxes.len() > MOST_NAMED { " and others" } else { "" };
            message(format_args!(
                "warning: {}: no typeface on this machine has {letters}{more}, so boxes are drawn instead; install \
                 one, such as Noto's (Debian: fonts-noto-core, fonts-noto-cjk), or name a .svg or .html file",
                file.display()
            ));
        }
        Ok(png)
    }
}
