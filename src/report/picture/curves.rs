//! The curves of runs as a picture.

use std::collections::HashMap;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde_json::Value;

use super::sketch::{LETTER, LINE, failed, is_drawn, letters, width_of};
use crate::error::{Error, Result};
use crate::limits;
use crate::report::page::Run;
use crate::train::log::is_of_final_model;

const INK: RGBColor = RGBColor(29, 33, 38);
const SOFT: RGBColor = RGBColor(93, 102, 112);
const GRID: RGBColor = RGBColor(225, 228, 232);
/// Colours of the runs, reused if there are more runs: the same as `--c0` to `--c7` in report.css.
const COLORS: [RGBColor; 8] = [
    RGBColor(37, 99, 176),
    RGBColor(194, 65, 12),
    RGBColor(21, 128, 61),
    RGBColor(126, 34, 206),
    RGBColor(132, 144, 11),
    RGBColor(14, 116, 144),
    RGBColor(190, 24, 93),
    RGBColor(77, 87, 97),
];
/// Size of one chart, in pixels.
const SIZE: (u32, u32) = (480, 280);
/// Height of a legend of one row.
const LEGEND: u32 = 34;
/// The legend for lines; and for those of `data.monitor`, if there are any.
const LINES: &str = "by updates; solid: training, dashed: validation";
const DOTTED: &str = "dotted: other sets";
/// A training curve with more points than this looks like noise: it is drawn fainter, so that it does not hide
/// validation's.
const CROWDED: usize = 400;
const ACROSS: usize = 2;

/// One of the charts.
struct Chart {
    title: &'static str,
    /// The field of the log's entries.
    key: &'static str,
    /// Which entries have it.
    measured: &'static [Measured],
    is_logarithmic: bool,
}

/// What an entry of the log was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measured {
    Training,
    Validation,
    /// A set of `data.monitor`.
    Monitored,
}
use Measured::{Monitored, Training, Validation};

impl Measured {
    /// Whether an entry is of that kind; an entry of the final model is no point of a curve.
    fn has(self, entry: &Value) -> bool {
        let event = match self {
            Training => "train",
            Validation => "valid",
            Monitored => "monitor",
        };
        entry["event"] == event && !is_of_final_model(entry)
    }
}

const TRAIN: &[Measured] = &[Training];
const SETS: &[Measured] = &[Validation, Monitored];
const ALL: &[Measured] = &[Training, Validation, Monitored];

const CHARTS: &[Chart] = &[
    Chart { title: "loss, nats a token, label-smoothed", key: "loss", measured: ALL, is_logarithmic: false },
    Chart { title: "perplexity", key: "perplexity", measured: ALL, is_logarithmic: true },
    Chart { title: "BLEU of the validation set", key: "bleu", measured: SETS, is_logarithmic: false },
    Chart { title: "chrF of the validation set", key: "chrf", measured: SETS, is_logarithmic: false },
    Chart { title: "COMET of the validation set", key: "comet", measured: SETS, is_logarithmic: false },
    Chart { title: "learning rate", key: "learning_rate", measured: TRAIN, is_logarithmic: false },
    Chart { title: "gradient norm", key: "gradient_norm", measured: TRAIN, is_logarithmic: false },
    Chart { title: "target tokens a second", key: "tokens_per_second", measured: TRAIN, is_logarithmic: false },
];

/// The curve of one run in a chart.
struct Curve {
    color: RGBColor,
    measured: Measured,
    points: Vec<(f64, f64)>,
}

/// The vertical axis of a chart: values, or their logarithms to base ten.
struct Axis {
    numbers: RangedCoordf64,
    is_logarithmic: bool,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.numbers.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.max_num_points() {
            most @ 1.. if self.is_logarithmic => logarithmic_marks(&self.numbers.range(), most),
            _ => self.numbers.key_points(hint),
        }
    }

    fn range(&self) -> Range<f64> {
        self.numbers.range()
    }
}

/// The colours of runs: [`COLORS`], then the same darker, then lighter, then from the beginning again.
fn colors() -> impl Iterator<Item = RGBColor> {
    let mixed = |color: RGBColor, share: f64, other: RGBColor| {
        let mix = |a: u8, b: u8| (f64::from(a) * share + f64::from(b) * (1.0 - share)).round() as u8;
        RGBColor(mix(color.0, other.0), mix(color.1, other.1), mix(color.2, other.2))
    };
    let darker = COLORS.into_iter().map(move |color| mixed(color, 0.5, INK));
    let lighter = COLORS.into_iter().map(move |color| mixed(color, 0.45, WHITE));
    COLORS.into_iter().chain(darker).chain(lighter).cycle()
}

impl Chart {
    fn curves(&self, runs: &[Run]) -> Vec<Curve> {
        let point = |entry: &Value| {
            let value = drawable(&entry[self.key]).filter(|value| !self.is_logarithmic || *value > 0.0)?;
            Some((drawable(&entry["update"])?, if self.is_logarithmic { value.log10() } else { value }))
        };
        let mut curves = Vec::new();
        for (run, color) in runs.iter().zip(colors()) {
            for measured in self.measured {
                // A curve for each set; only monitored sets have names.
                let (mut sets, mut numbers) = (Vec::<Vec<(f64, f64)>>::new(), HashMap::new());
                for entry in run.log().iter().filter(|entry| measured.has(entry)) {
                    let Some(point) = point(entry) else { continue };
                    let number = *numbers.entry(entry["set"].as_str()).or_insert(sets.len());
                    match sets.get_mut(number) {
                        Some(points) => points.push(point),
                        None => sets.push(vec![point]),
                    }
                }
                curves.extend(sets.into_iter().map(|points| Curve { color, measured: *measured, points }));
            }
        }
        curves
    }

    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>, curves: &[Curve]) -> Result<()> {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let (x, y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
        let y = Axis { numbers: y.into(), is_logarithmic: self.is_logarithmic };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, letters(LETTER, INK))
            .margin(8)
            .margin_right(20)
            .x_label_area_size(26)
            .y_label_area_size(56)
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        let label = |value: &f64| short(if self.is_logarithmic { 10f64.powf(*value) } else { *value });
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(6)
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(letters(10, SOFT))
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&label)
            .draw()
            .map_err(failed)?;
        let (training, validations): (Vec<_>, Vec<_>) = curves.iter().partition(|curve| curve.measured == Training);
        let has_validation = !validations.is_empty();
        for curve in training.into_iter().chain(validations) {
            let points = curve.points.iter().copied();
            let is_noise = has_validation && curve.measured == Training && curve.points.len() > CROWDED;
            let strength = if is_noise { 0.4 } else { 1.0 };
            let style = curve.color.mix(strength).stroke_width(2);
            let drawn = match curve.measured {
                Training => chart.draw_series(LineSeries::new(points.clone(), style)).map(|_| ()),
                Validation => chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, style)).map(|_| ()),
                Monitored => chart.draw_series(DashedLineSeries::new(points.clone(), 2, 3, style)).map(|_| ()),
            };
            drawn.map_err(failed)?;
            if curve.points.len() <= 40 {
                chart.draw_series(points.map(|at| Circle::new(at, 2, curve.color.filled()))).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The curves of runs, named, as SVG.
///
/// # Errors
/// Their logs have no numbers.
pub fn whole(runs: &[Run], names: &[String]) -> Result<String> {
    let charts: Vec<(&Chart, Vec<Curve>)> = CHARTS.iter().map(|chart| (chart, chart.curves(runs))).collect();
    let charts: Vec<_> = charts.into_iter().filter(|(_, curves)| !curves.is_empty()).collect();
    if charts.is_empty() {
        return Err(Error::failure("the logs have nothing to draw yet")
            .help("numbers come every train.log_every updates, and at validations"));
    }
    let rows = charts.len().div_ceil(ACROSS);
    let width = SIZE.0 * ACROSS.min(charts.len()) as u32;
    let has_dotted = charts.iter().flat_map(|(_, curves)| curves).any(|curve| curve.measured == Monitored);
    let legend = Legend::new(names, has_dotted, width as i32);
    let size = (width, legend.height() + SIZE.1 * rows as u32);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (above, area) = area.split_vertically(legend.height());
        legend.draw(&above)?;
        let areas = area.split_evenly((rows, ACROSS.min(charts.len())));
        charts.iter().zip(&areas).try_for_each(|((chart, curves), area)| chart.draw(area, curves))?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Which colour each run has, in as many rows as it takes.
struct Legend {
    /// A text, its position, and the colour of the line before it, if there is one.
    entries: Vec<(String, (i32, i32), Option<RGBColor>)>,
}

impl Legend {
    fn new(names: &[String], has_dotted: bool, width: i32) -> Self {
        // Keep the ends of long names, which tell them apart.
        let short = |name: &String| -> String {
            let letters: Vec<char> = name.chars().filter(is_drawn).collect();
            if letters.len() <= 20 {
                letters.iter().collect()
            } else {
                format!("…{}", letters[letters.len() - 19..].iter().collect::<String>())
            }
        };
        let runs = names.iter().map(short).zip(colors().map(Some));
        let (left, mut x, mut y) = (16, 16, LEGEND as i32 / 2);
        let mut entries = Vec::new();
        let lines = if has_dotted { format!("{LINES}, {DOTTED}") } else { LINES.to_owned() };
        for (text, color) in runs.chain([(lines, None)]) {
            let line = if color.is_some() { 30 } else { 0 };
            let needed = line + width_of(&text, LETTER);
            if x > left && x + needed > width - 8 {
                (x, y) = (left, y + LINE);
            }
            entries.push((text, (x + line, y), color));
            x += needed + 20;
        }
        Self { entries }
    }

    fn height(&self) -> u32 {
        let last = self.entries.last().map_or(0, |(_, (_, y), _)| *y);
        (last + LEGEND as i32 / 2) as u32
    }

    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>) -> Result<()> {
        for (text, (x, y), color) in &self.entries {
            if let Some(color) = color {
                area.draw(&PathElement::new(vec![(x - 30, *y), (x - 6, *y)], color.stroke_width(2))).map_err(failed)?;
            }
            let ink = if color.is_some() { INK } else { SOFT };
            area.draw_text(text, &letters(LETTER, ink), (*x, y - LETTER / 2)).map_err(failed)?;
        }
        Ok(())
    }
}

/// A number that can be drawn. Beyond this size, differences of numbers are infinite or 0, and marking an axis never
/// ends.
fn drawable(value: &Value) -> Option<f64> {
    let value = value.as_f64().filter(|value| value.abs() <= limits::LARGEST_DRAWN)?;
    Some(if value.abs() < 1.0 / limits::LARGEST_DRAWN { 0.0 } else { value })
}

/// The range of all values, with a margin.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let room = if high - low > 1e-9 * high.abs() {
        (high - low) * 0.03
    } else {
        (if high == 0.0 { 1.0 } else { high.abs() }) / 10.0
    };
    low - room..high + room
}

/// The marks of a logarithmic axis: at round numbers; if these are too few, evenly spaced; if too many, at whole powers
/// of ten.
fn logarithmic_marks(powers: &Range<f64>, most: usize) -> Vec<f64> {
    let marks = |factors: &[f64]| -> Vec<f64> {
        let whole = powers.start.floor() as i32..=powers.end.ceil() as i32;
        let marks = whole.flat_map(|power| factors.iter().map(move |factor| f64::from(power) + factor.log10()));
        marks.filter(|mark| powers.contains(mark)).collect()
    };
    let round = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]].into_iter().map(marks).find(|marks| marks.len() <= most);
    let values = 10f64.powf(powers.start)..10f64.powf(powers.end);
    match round {
        Some(marks) if marks.len() < 3 && values.end.is_finite() => {
            RangedCoordf64::from(values).key_points(most).into_iter().map(f64::log10).collect()
        }
        Some(marks) => marks,
        None => RangedCoordf64::from(powers.clone()).key_points(most),
    }
}

/// A number with three or four digits.
fn short(value: f64) -> String {
    let size = value.abs();
    let text = |value: f64, digits: usize, unit: &str| {
        let text = format!("{value:.digits$}");
        let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        format!("{text}{unit}")
    };
    match size {
        // A value just below a unit is rounded up to it.
        _ if size >= 999.995e9 => format!("{value:.1e}"),
        _ if size >= 999.995e6 => text(value / 1e9, 2, "G"),
        _ if size >= 999.95e3 => text(value / 1e6, 2, "M"),
        _ if size >= 9999.5 => text(value / 1e3, 1, "k"),
        _ if size >= 100.0 => text(value, 0, ""),
        _ if size < 1e-12 => "0".to_owned(),
        _ if size >= 0.01 => text(value, 3, ""),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 1.0, 2.5, 250.0, 9999.0, 12_345.0, 7_000_000.0, 0.0004, -3.25, 1e45].map(short);
        assert_eq!(shown, ["0", "1", "2.5", "250", "9999", "12.3k", "7M", "4.0e-4", "-3.25", "1.0e45"]);
        let below_a_unit = [9999.6, 999_960.0, 999_999_999.0, 999_999_999_999.0].map(short);
        assert_eq!(below_a_unit, ["10k", "1M", "1G", "1.0e12"]);
    }

    /// Each of these made an axis that was never finished, or a file that is no XML.
    #[test]
    fn hostile_numbers_and_names_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        for pair in [
            [1e308, -1e308],
            [f64::MAX, f64::MIN_POSITIVE],
            [5e-324, 1e-323],
            [1e100, 1e100 + 1e85],
            [1e16, 1e16 + 2.0],
            [0.0, 1e-99],
        ] {
            let entry = |(update, value): (f64, f64)| {
                json!({
                    "event": "train", "update": update, "loss": value, "perplexity": value, "learning_rate": value,
                })
            };
            let log: Vec<Value> =
                [(1.0, pair[0]), (2.0, pair[1]), (pair[0], 1.0), (pair[1], 2.0), (3.0, 1.5)].map(entry).into();
            let run = Run::new(folder.path(), &log).unwrap();
            let name = "a\u{fffe}\u{1}<b>&\u{ffff}".to_owned();
            let svg = whole(&[run], &[name]).unwrap();
            resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default()).unwrap();
            assert!(svg.contains("a&lt;b&gt;&amp;") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn logarithms_are_marked_at_round_numbers() {
        let shown = |low: f64, high: f64| -> Vec<String> {
            let marks = logarithmic_marks(&(low.log10()..high.log10()), 6);
            marks.into_iter().map(|mark| short(10f64.powf(mark))).collect()
        };
        assert_eq!(shown(9.0, 210.0), ["10", "20", "50", "100", "200"]);
        assert_eq!(shown(3.1, 4000.0), ["10", "30", "100", "300", "1000", "3000"]);
        assert_eq!(shown(0.9, 2e7)[..3], ["1", "100", "10k"]);
        // Evenly: 4.2, 4.4 and so on.
        let even = shown(4.1, 4.9);
        assert!(even.len() >= 3 && even.iter().all(|mark| mark.len() == 3), "{even:?}");
    }

    #[test]
    fn a_legend_stays_within_the_picture() {
        for (count, width, rows) in [(1, 960, 1), (3, 960, 1), (4, 960, 2), (20, 960, 6), (1, 480, 2), (3, 480, 3)] {
            let names: Vec<String> = (0..count).map(|run| format!("a-run-with-a-long-name-{run:02}")).collect();
            let legend = Legend::new(&names, false, width);
            assert_eq!(legend.height() as i32, LEGEND as i32 + (rows - 1) * LINE, "{count} {width}");
            for (text, (x, y), _) in &legend.entries {
                let (right, height) = (x + width_of(text, LETTER), legend.height() as i32);
                assert!(right <= width && y + LETTER / 2 < height, "{count} {width}: {text} at {x}, {y}");
            }
        }
        let names = ["short", "exactly-twenty-chars", "exactly-twenty-chars-"].map(str::to_owned);
        let shown = Legend::new(&names, false, 960).entries.into_iter().map(|(text, ..)| text);
        assert_eq!(shown.take(3).collect::<Vec<_>>(), ["short", "exactly-twenty-chars", "…actly-twenty-chars-"]);
    }

    #[test]
    fn each_set_has_a_curve_of_its_own() {
        let entry = |event: &str, update: u32, bleu: f64| json!({"event": event, "update": update, "bleu": bleu});
        let monitored = |set: &str, update: u32, bleu: f64, model: Option<&str>| {
            json!({
                "event": "monitor", "set": set, "update": update, "bleu": bleu, "model": model,
            })
        };
        let log = [
            monitored("news", 10, 2.0, None),
            monitored("talks", 10, 5.0, None),
            entry("valid", 10, 1.0),
            monitored("news", 20, 3.0, None),
            monitored("talks", 20, 6.0, None),
            entry("valid", 20, 4.0),
            monitored("news", 20, 9.0, Some("final")),
            entry("final", 20, 9.0),
        ];
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), "").unwrap();
        let runs = [Run::new(folder.path(), &log).unwrap()];
        let chart = CHARTS.iter().find(|chart| chart.key == "bleu").unwrap();
        let curves = chart.curves(&runs).into_iter().map(|curve| (curve.measured, curve.points));
        assert_eq!(
            curves.collect::<Vec<_>>(),
            [
                (Validation, vec![(10.0, 1.0), (20.0, 4.0)]),
                (Monitored, vec![(10.0, 2.0), (20.0, 3.0)]),
                (Monitored, vec![(10.0, 5.0), (20.0, 6.0)]),
            ]
        );
        let names = ["run".to_owned()];
        assert!(whole(&runs, &names).unwrap().contains("dashed: validation, dotted: other sets"));
        let alone = [Run::new(folder.path(), &log[2..3]).unwrap()];
        assert!(!whole(&alone, &names).unwrap().contains("dotted"));
    }

    #[test]
    fn one_value_has_a_range() {
        assert_eq!(range([2.0].into_iter()), 1.8..2.2);
        assert_eq!(range([0.0, 0.0].into_iter()), -0.1..0.1);
        assert_eq!(range([1e-3].into_iter()), 9e-4..1.1e-3);
    }
}
