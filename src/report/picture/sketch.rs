//! A drawing that grows as shapes are added.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use unicode_width::UnicodeWidthStr;

use crate::error::{Error, Result};

/// Height of letters, in pixels.
pub(super) const LETTER: i32 = 12;
/// From line to line.
pub(super) const LINE: i32 = 18;
/// Around everything.
const MARGIN: i32 = 14;
/// plotters' font size per CSS pixel.
const PER_PIXEL: f64 = 1.24;

/// Where a text is relative to its point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    /// To the right of it.
    Start,
    /// To the left of it.
    End,
    /// Above it, rotated to read upwards.
    Up,
}

enum Shape {
    Text { text: String, at: (i32, i32), anchor: Anchor, size: i32, color: RGBColor },
    Box { corner: (i32, i32), size: (i32, i32), color: RGBColor },
    Line { ends: [(i32, i32); 2], color: RGBColor },
}

/// Shapes in the order they are drawn, in pixels from the upper left corner inside the margin.
#[derive(Default)]
pub(super) struct Sketch {
    shapes: Vec<Shape>,
    width: i32,
    height: i32,
}

/// Whether a character is drawn: XML can hold neither the others nor escapes of them.
pub(super) fn is_drawn(c: &char) -> bool {
    !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// A text that can be drawn: control characters and what XML cannot hold are replaced, and a long text is cut.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut letters = text.chars().map(|c| Some(c).filter(is_drawn).unwrap_or('\u{fffd}'));
    let mut shown: String = letters.by_ref().take(LONGEST).collect();
    if letters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The width of a text in a monospaced typeface, in which East Asian letters are twice as wide.
pub(super) fn width_of(text: &str, size: i32) -> i32 {
    (text.width() as f64 * f64::from(size) * 0.61).ceil() as i32
}

impl Sketch {
    fn cover(&mut self, x: i32, y: i32) {
        self.width = self.width.max(x);
        self.height = self.height.max(y);
    }

    /// A text, vertically centred at a point; passes it through [`shown`].
    pub(super) fn text(&mut self, text: &str, at: (i32, i32), anchor: Anchor, size: i32, color: RGBColor) {
        let text = shown(text);
        let width = width_of(&text, size);
        match anchor {
            Anchor::Start => self.cover(at.0 + width, at.1 + size),
            Anchor::End => self.cover(at.0, at.1 + size),
            Anchor::Up => self.cover(at.0 + size, at.1),
        }
        self.shapes.push(Shape::Text { text, at, anchor, size, color });
    }

    /// A filled box.
    pub(super) fn rectangle(&mut self, corner: (i32, i32), size: (i32, i32), color: RGBColor) {
        self.cover(corner.0 + size.0, corner.1 + size.1);
        self.shapes.push(Shape::Box { corner, size, color });
    }

    /// A line.
    pub(super) fn line(&mut self, from: (i32, i32), to: (i32, i32), color: RGBColor) {
        self.cover(from.0.max(to.0), from.1.max(to.1));
        self.shapes.push(Shape::Line { ends: [from, to], color });
    }

    /// Its height so far.
    pub(super) fn height(&self) -> i32 {
        self.height
    }

    /// The drawing on white.
    ///
    /// # Errors
    /// Cannot happen with shapes of finite size: `plotters` returns errors of its output, which is memory.
    pub(super) fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        let side = |side: i32| (side + 2 * MARGIN).unsigned_abs();
        {
            let area = SVGBackend::with_string(&mut svg, (side(self.width), side(self.height))).into_drawing_area();
            area.fill(&WHITE).map_err(failed)?;
            self.shapes.iter().try_for_each(|shape| draw(&area, shape))?;
            area.present().map_err(failed)?;
        }
        Ok(svg)
    }
}

pub(super) fn failed(error: impl std::error::Error) -> Error {
    Error::failure("cannot draw the picture").context(error)
}

/// A text style for letters of this many pixels.
pub(super) fn letters<'a>(size: i32, color: RGBColor) -> TextStyle<'a> {
    TextStyle { color: color.to_backend_color(), ..TextStyle::from(("monospace", f64::from(size) * PER_PIXEL)) }
}

fn draw(area: &DrawingArea<SVGBackend, plotters::coord::Shift>, shape: &Shape) -> Result<()> {
    let inside = |(x, y): (i32, i32)| (x + MARGIN, y + MARGIN);
    match shape {
        Shape::Text { text, at, anchor, size, color } => {
            let style = letters(*size, *color);
            let style = match anchor {
                Anchor::Start | Anchor::Up => style.pos(Pos::new(HPos::Left, VPos::Center)),
                Anchor::End => style.pos(Pos::new(HPos::Right, VPos::Center)),
            };
            let style = if *anchor == Anchor::Up { style.transform(FontTransform::Rotate270) } else { style };
            area.draw_text(text, &style, inside(*at)).map_err(failed)
        }
        Shape::Box { corner, size, color } => {
            let (x, y) = inside(*corner);
            area.draw(&Rectangle::new([(x, y), (x + size.0, y + size.1)], color.filled())).map_err(failed)
        }
        Shape::Line { ends, color } => {
            area.draw(&PathElement::new(ends.map(inside).to_vec(), color.stroke_width(1))).map_err(failed)
        }
    }
}
