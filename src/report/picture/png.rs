//! SVG to PNG, by `resvg`.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Group, Node, Options, Tree};

use crate::error::{Error, Result};

/// Pixels of a PNG per pixel of the SVG: more than 1, so that small letters are legible.
const SCALE: f32 = 1.5;

/// The longest side of a PNG, in pixels; at four bytes a pixel that bounds memory.
const MOST_PIXELS: f32 = 16384.0;

/// The drawing as a PNG, scaled by less than [`SCALE`] if it would be too large; and the letters that no typeface has.
///
/// # Errors
/// Its aspect ratio is too extreme, or memory is short.
pub fn png(svg: &str) -> Result<(Vec<u8>, BTreeSet<char>)> {
    let failed = |why: String| {
        let error = Error::failure(format!("cannot turn the picture into PNG: {why}"));
        error.help("it may be too large: name a .svg or a .html file")
    };
    let options = Options { fontdb: typefaces(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(error.to_string()))?;
    let size = tree.size();
    let scale = SCALE.min(MOST_PIXELS / size.width().max(size.height()));
    let [width, height] = [size.width(), size.height()].map(|side| (side * scale).ceil() as u32);
    let pixels = Pixmap::new(width, height)
        .ok_or_else(|| failed(format!("a picture of {width} × {height} pixels cannot be made")));
    let mut pixels = pixels?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    let png = pixels.encode_png().map_err(|error| failed(error.to_string()))?;
    let mut boxes = BTreeSet::new();
    find_boxes(tree.root(), &mut boxes);
    Ok((png, boxes))
}

/// Finds letters that are drawn as boxes because no typeface has them.
fn find_boxes(group: &Group, found: &mut BTreeSet<char>) {
    for node in group.children() {
        match node {
            Node::Group(group) => find_boxes(group, found),
            Node::Text(text) => {
                let glyphs = text.layouted().iter().flat_map(|span| &span.positioned_glyphs);
                found.extend(glyphs.filter(|glyph| glyph.id.0 == 0).flat_map(|glyph| glyph.text.chars()));
            }
            _ => {}
        }
    }
}

/// The program's own typeface, and those of the system.
fn typefaces() -> Arc<Database> {
    static TYPEFACES: OnceLock<Arc<Database>> = OnceLock::new();
    let load = || {
        let mut database = Database::new();
        database.load_font_data(epaint_default_fonts::HACK_REGULAR.to_vec());
        database.load_system_fonts();
        database.set_monospace_family("Hack");
        Arc::new(database)
    };
    TYPEFACES.get_or_init(load).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters are drawn even on a machine without typefaces, with the one in the program.
    #[test]
    fn a_picture_has_letters() {
        let picture = |text: &str| {
            let svg = format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='20'>\
                 <text x='2' y='15' font-family='monospace' font-size='12'>{text}</text></svg>"
            );
            let (png, boxes) = png(&svg).unwrap();
            assert_eq!(boxes, BTreeSet::new());
            assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
            Pixmap::decode_png(&png).unwrap()
        };
        let ink = |pixels: &Pixmap| pixels.pixels().iter().filter(|pixel| pixel.alpha() > 128).count();
        let (none, some, more) = (picture(""), picture("▁Haus"), picture("▁Haus▁Tür"));
        assert_eq!((none.width(), none.height(), ink(&none)), (120, 30, 0));
        assert!(ink(&some) > 40 && ink(&more) > ink(&some), "{} {}", ink(&some), ink(&more));
    }

    #[test]
    fn a_picture_is_no_larger_than_can_be_had() {
        let (png, _) = png("<svg xmlns='http://www.w3.org/2000/svg' width='40000' height='20'/>").unwrap();
        assert_eq!(Pixmap::decode_png(&png).unwrap().width(), 16384);
    }

    /// A private letter, which is in no typeface.
    #[test]
    fn letters_without_a_typeface_are_found() {
        let svg = "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='20'>\
                   <g><text x='2' y='15' font-family='monospace'>a\u{10fffd}b</text></g></svg>";
        assert_eq!(png(svg).unwrap().1, BTreeSet::from(['\u{10fffd}']));
    }
}
