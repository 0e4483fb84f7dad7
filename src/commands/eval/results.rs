//! Scores of systems, and how they are printed.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::cli::{ScoreFormat, SignificanceArgs};
use crate::error::Result;
use crate::metrics::resample::{self, Interval, Systems};
use crate::metrics::{Metric, Statistics, TextMetric, signature};

/// The significance test asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// Nothing.
    None,
    /// Confidence intervals from this many bootstrap samples.
    Confidence(usize),
    /// Differences from the first system, and intervals, from this many bootstrap samples.
    PairedBootstrap(usize),
    /// Differences from the first system, by this many trials of approximate randomisation.
    PairedRandomisation(usize),
}

impl Test {
    /// The test that flags ask for.
    pub(crate) fn new(args: &SignificanceArgs) -> Self {
        let number = |n: u32| n as usize;
        match args {
            _ if args.paired_bs => Self::PairedBootstrap(number(args.paired_bs_n)),
            _ if args.paired_ar => Self::PairedRandomisation(number(args.paired_ar_n)),
            _ if args.confidence => Self::Confidence(number(args.confidence_n)),
            _ => Self::None,
        }
    }

    /// Whether systems are compared with the first.
    pub(crate) fn is_paired(self) -> bool {
        matches!(self, Self::PairedBootstrap(_) | Self::PairedRandomisation(_))
    }

    /// The parts it adds to a signature.
    fn signature(self, seed: u64) -> Vec<(&'static str, String)> {
        let (key, samples) = match self {
            Self::None => return Vec::new(),
            Self::Confidence(samples) | Self::PairedBootstrap(samples) => ("bs", samples),
            Self::PairedRandomisation(trials) => ("ar", trials),
        };
        vec![(key, samples.to_string()), ("seed", seed.to_string())]
    }
}

/// The score of one system by one metric.
pub(crate) struct Score {
    statistics: Vec<f64>,
    score: f64,
    interval: Option<Interval>,
    p_value: Option<f64>,
}

/// A metric, and what it has found in each system.
pub(crate) struct Scored {
    pub(crate) metric: Box<dyn Metric>,
    /// Of each system.
    pub(crate) statistics: Vec<Statistics>,
}

impl Scored {
    /// The translations of systems, compared with references.
    ///
    /// # Errors
    /// There is nothing to score, or systems and references differ in length.
    pub(crate) fn new(
        metric: Box<dyn TextMetric>,
        systems: &[(String, Vec<String>)],
        references: &[Vec<String>],
    ) -> Result<Self> {
        let of_system = |(_, lines): &(String, Vec<String>)| Statistics::new(&*metric, lines, references);
        Ok(Self { statistics: systems.iter().map(of_system).collect::<Result<_>>()?, metric })
    }

    /// What it has found in one line.
    pub(crate) fn of_line(&self, line: usize) -> Found<'_> {
        (&*self.metric, self.statistics.iter().map(|statistics| statistics.of_line(line)).collect())
    }

    /// What it has found in all lines.
    pub(crate) fn of_all(&self) -> Found<'_> {
        (&*self.metric, self.statistics.clone())
    }
}

/// A metric, and what it has found in each system, in all lines or in some.
pub(crate) type Found<'a> = (&'a dyn Metric, Vec<Statistics>);

/// Scores of systems on the same lines.
pub(crate) struct Results<'a> {
    metrics: Vec<&'a dyn Metric>,
    signatures: Vec<String>,
    systems: Vec<String>,
    /// By metric, by system.
    scores: Vec<Vec<Score>>,
    is_paired: bool,
}

impl<'a> Results<'a> {
    /// Scores systems by what the metrics have found in each.
    pub(crate) fn new(found: Vec<Found<'a>>, systems: &[String], test: Test, seed: u64) -> Self {
        let all: Vec<Systems> =
            found.iter().map(|(metric, statistics)| Systems { metric: *metric, statistics }).collect();
        let samples = match test {
            Test::Confidence(samples) | Test::PairedBootstrap(samples) => resample::bootstrap(&all, samples, seed),
            _ => Vec::new(),
        };
        let p_values = match test {
            Test::PairedBootstrap(_) => resample::paired_bootstrap(&all, &samples),
            Test::PairedRandomisation(trials) => resample::paired_randomisation(&all, trials, seed),
            _ => Vec::new(),
        };
        let score = |metric: usize, system: usize| {
            let statistics = found[metric].1[system].sum();
            Score {
                score: found[metric].0.score(&statistics),
                interval: samples.get(metric).map(|of_metric| Interval::from_scores(&of_metric[system])),
                p_value: p_values.get(metric).zip(system.checked_sub(1)).map(|(of_metric, other)| of_metric[other]),
                statistics,
            }
        };
        let of_metric = |metric: usize| (0..systems.len()).map(|system| score(metric, system)).collect();
        let signature = |(metric, statistics): &Found<'_>| {
            let references = statistics.first().map_or(0, |statistics| statistics.references);
            signature(*metric, references, &test.signature(seed))
        };
        Self {
            signatures: found.iter().map(signature).collect(),
            systems: systems.to_vec(),
            scores: (0..found.len()).map(of_metric).collect(),
            is_paired: test.is_paired(),
            metrics: found.iter().map(|(metric, _)| *metric).collect(),
        }
    }

    /// How many decimals of a metric's scores are printed, where those in percent have `width`.
    fn decimals(&self, metric: usize, width: usize) -> usize {
        width + self.metrics[metric].more_decimals()
    }

    /// Whether no metric was wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// `{"bleu": {"score": …, …, "signature": …}, …}`, nothing rounded; for several systems a list of these, with the
    /// system's name as `hyp`.
    pub(crate) fn json(&self) -> Value {
        let of_system = |system: usize| {
            let mut json = Map::new();
            for (index, metric) in self.metrics.iter().enumerate() {
                let Score { statistics, score, interval, p_value } = &self.scores[index][system];
                let mut of_metric = Map::from_iter([("score".to_owned(), json!(score))]);
                metric.add_to_json(statistics, &mut of_metric);
                if let Some(Interval { mean, half_width }) = interval {
                    of_metric.insert("mean".to_owned(), json!(mean));
                    of_metric.insert("confidence".to_owned(), json!(half_width));
                }
                if let Some(p_value) = p_value {
                    of_metric.insert("p_value".to_owned(), json!(p_value));
                }
                of_metric.insert("signature".to_owned(), json!(self.signatures[index]));
                json.insert(metric.key().to_owned(), of_metric.into());
            }
            if self.systems.len() > 1 {
                json.insert("hyp".to_owned(), json!(self.systems[system]));
            }
            Value::from(json)
        };
        match self.systems.len() {
            0 => Value::from(Map::new()),
            1 => of_system(0),
            n => (0..n).map(of_system).collect(),
        }
    }

    /// In sacrebleu's formats: a line per metric, or a table of several systems.
    pub(crate) fn print(&self, format: ScoreFormat, width: usize, score_only: bool) -> String {
        match format {
            ScoreFormat::Json if self.systems.len() == 1 => self.single_json(width),
            ScoreFormat::Json => self.table_json(width),
            ScoreFormat::Latex => self.latex(width),
            ScoreFormat::Text if self.systems.len() == 1 => self.lines(width, score_only).join("\n"),
            ScoreFormat::Text => self.table(width, score_only),
        }
    }

    /// A line per metric, aligned.
    fn lines(&self, width: usize, score_only: bool) -> Vec<String> {
        let of_metric = |(i, metric): (usize, &&dyn Metric)| {
            let score = &self.scores[i][0];
            let value = value(score, self.decimals(i, width), true);
            if score_only {
                return (String::new(), value);
            }
            let details = metric.details(&score.statistics).map(|details| format!(" {details}")).unwrap_or_default();
            (format!("{}|{}", metric.name(), self.signatures[i]), format!(" = {value}{details}"))
        };
        let lines: Vec<(String, String)> = self.metrics.iter().enumerate().map(of_metric).collect();
        let longest = lines.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
        lines.into_iter().map(|(left, right)| format!("{left:>longest$}{right}")).collect()
    }

    /// Rows of a table: its head, then one per system.
    fn rows(&self, width: usize) -> Vec<Vec<String>> {
        let has_interval = self.scores.iter().flatten().any(|score| score.interval.is_some());
        let column = |metric: &&dyn Metric| {
            let interval = if has_interval { " (μ ± 95% CI)" } else { "" };
            metric.name() + interval
        };
        let head = std::iter::once("System".to_owned()).chain(self.metrics.iter().map(column)).collect();
        let system = |i: usize| {
            let scores = self.scores.iter().enumerate();
            let scores = scores.map(|(metric, of)| value(&of[i], self.decimals(metric, width), false));
            std::iter::once(self.name(i)).chain(scores).collect()
        };
        std::iter::once(head).chain((0..self.systems.len()).map(system)).collect()
    }

    /// A system's name in a table.
    fn name(&self, system: usize) -> String {
        let baseline = if self.is_paired && system == 0 { "Baseline: " } else { "" };
        format!("{baseline}{}", self.systems[system])
    }

    fn table(&self, width: usize, score_only: bool) -> String {
        let rows = self.rows(width);
        if score_only {
            return rows[1..].iter().map(|row| row[1..].join("\t")).collect::<Vec<_>>().join("\n");
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header(&rows[0]).add_rows(&rows[1..]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n");
        if self.is_paired {
            text += "(p = …) is how likely so large a difference from the baseline would be by chance; * marks less \
                     than 0.05\n";
        }
        for (metric, signature) in self.metrics.iter().zip(&self.signatures) {
            text += &format!("{}|{signature}\n", metric.name());
        }
        text.trim_end().to_owned()
    }

    fn latex(&self, width: usize) -> String {
        let escaped = |cell: &String| {
            // At the beginning of a row, these would be an argument of the command before it.
            let mut text = if cell.starts_with(['[', '*']) { "{}".to_owned() } else { String::new() };
            for c in cell.chars() {
                match c {
                    '_' | '%' | '&' | '#' | '$' | '{' | '}' => text.extend(['\\', c]),
                    '\\' => text += "\\textbackslash{}",
                    '~' => text += "\\textasciitilde{}",
                    '^' => text += "\\textasciicircum{}",
                    'μ' => text += "$\\mu$",
                    '±' => text += "$\\pm$",
                    _ => text.push(c),
                }
            }
            text
        };
        let line = |row: &Vec<String>| row.iter().map(escaped).collect::<Vec<_>>().join(" & ") + " \\\\";
        let rows = self.rows(width);
        let mut lines =
            vec![format!("\\begin{{tabular}}{{r{}}}", "c".repeat(self.metrics.len())), "\\toprule".to_owned()];
        lines.extend([line(&rows[0]), "\\midrule".to_owned()]);
        lines.extend(rows[1..].iter().map(line));
        lines.extend(["\\bottomrule".to_owned(), "\\end{tabular}".to_owned()]);
        lines.extend(self.metrics.iter().zip(&self.signatures).map(|(metric, of)| {
            // A model's name may have a line break.
            format!("% {}|{}", metric.name(), of.to_string().replace(char::is_control, " "))
        }));
        lines.join("\n")
    }

    /// sacrebleu's JSON for one system.
    fn single_json(&self, width: usize) -> String {
        let of_metric = |(i, metric): (usize, &&dyn Metric)| {
            let (score, width) = (&self.scores[i][0], self.decimals(i, width));
            let mut json = Map::new();
            json.insert("name".to_owned(), metric.name().into());
            json.insert("score".to_owned(), rounded(score.score, width));
            json.insert("signature".to_owned(), self.signatures[i].clone().into());
            if let Some(Interval { mean, half_width }) = score.interval {
                json.insert("confidence_mean".to_owned(), rounded(mean, width));
                json.insert("confidence_var".to_owned(), rounded(half_width, width));
                json.insert("confidence".to_owned(), format!("μ = {mean:.width$} ± {half_width:.width$}").into());
            }
            if let Some(details) = metric.details(&score.statistics) {
                json.insert("verbose_score".to_owned(), details.into());
            }
            for part in self.signatures[i].split('|') {
                let (key, value) = part.split_once(':').unwrap_or((part, ""));
                json.insert(key.to_owned(), value.into());
            }
            Value::from(json)
        };
        let mut of_metrics: Vec<Value> = self.metrics.iter().enumerate().map(of_metric).collect();
        let json = if of_metrics.len() == 1 { of_metrics.remove(0) } else { of_metrics.into() };
        indented(&json)
    }

    /// sacrebleu's JSON for several systems.
    fn table_json(&self, width: usize) -> String {
        let of_system = |system: usize| {
            let mut json = Map::from_iter([("system".to_owned(), Value::from(self.name(system)))]);
            for (i, (metric, by_system)) in self.metrics.iter().zip(&self.scores).enumerate() {
                let width = self.decimals(i, width);
                let Score { score, interval, p_value, .. } = &by_system[system];
                let value = if self.is_paired {
                    json!({
                        "score": score, "p_value": p_value, "mean": interval.map(|interval| interval.mean),
                        "ci": interval.map(|interval| interval.half_width),
                    })
                } else {
                    Value::from(value(&by_system[system], width, true))
                };
                json.insert(metric.name(), value);
            }
            Value::from(json)
        };
        indented(&(0..self.systems.len()).map(of_system).collect())
    }
}

/// A score with its interval and p-value.
fn value(score: &Score, width: usize, with_mu: bool) -> String {
    let mut text = format!("{:.width$}", score.score);
    if let Some(Interval { mean, half_width }) = score.interval {
        let mu = if with_mu { "μ = " } else { "" };
        text += &format!(" ({mu}{mean:.width$} ± {half_width:.width$})");
    }
    if let Some(p_value) = score.p_value {
        let star = if p_value < 0.05 { "*" } else { "" };
        text += &format!(" (p = {p_value:.4}){star}");
    }
    text
}

fn rounded(number: f64, width: usize) -> Value {
    format!("{number:.width$}").parse::<f64>().map_or(Value::Null, Value::from)
}

fn indented(json: &Value) -> String {
    format!("{json:#}")
}
