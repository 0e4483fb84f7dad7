//! What the loop tells of updates and validations: lines on the screen, and entries of the log.

use serde_json::json;

use super::best::Standing;
use super::callbacks::{Callbacks, Lines, Validation};
use super::health::Observed;
use super::log::Samples;
use super::pipeline::Update;
use super::state::Window;
use super::{Clock, Trainer};
use crate::escape::in_one_line;
use crate::ranks::{Communicator, Idle};
use crate::train::ValidConfig;

/// Lines that a message names; the log names all.
const NAMED: usize = 8;
/// Letters of a translation in a message.
const SHOWN: usize = 60;
/// Others wait so much longer than the slowest rank before that is worth a note, as a share of the time.
const SLOW: f64 = 0.2;
/// The updates of a start after which a slow rank is named: the first ones take longer, on any rank.
const WARM_UP: u64 = 3;
/// Updates after which a model that translates most sentences alike may be stuck; before, it is usual.
const USUALLY_ALIKE: u64 = 1000;

/// A translation that many sources have, as a message names it.
fn in_few_letters(text: &str) -> String {
    let mut letters = text.chars();
    let beginning: String = letters.by_ref().take(SHOWN).collect();
    let more = if letters.next().is_some() { "…" } else { "" };
    if text.is_empty() {
        "an empty translation".to_owned()
    } else {
        format!("the same translation, \"{beginning}{more}\"")
    }
}

/// Some lines of files, as a message names them.
fn in_words(lines: &[Lines]) -> String {
    let all = |Lines { file, lines }: &Lines| {
        let named: Vec<String> = lines.iter().take(NAMED).map(usize::to_string).collect();
        let more = if lines.len() > NAMED { format!(", … ({} lines)", lines.len()) } else { String::new() };
        format!("{}: {}{more}", file.display(), named.join(", "))
    };
    lines.iter().map(all).collect::<Vec<_>>().join("; ")
}

impl Trainer<'_> {
    /// Takes note of an update that was not made.
    pub(super) fn skip(&mut self, update: &Update, callbacks: &dyn Callbacks) {
        self.state.health.skip();
        // A checkpoint of this step, if there is one, does not know of the skip.
        self.session.saved_at = None;
        let (step, skipped) = (self.state.step + 1, self.state.health.skipped);
        let (loss, norm, lines) = (update.loss(), update.outcome.gradient_norm, callbacks.lines(update.pairs()));
        self.log.line(&format!(
            "warning: update {step} skipped: its loss is {loss} and the gradient's norm {norm}; it was computed from \
             {}",
            in_words(&lines)
        ));
        // JSON has no numbers for these.
        self.log.entry(&json!({
            "event": "skip", "update": step, "epoch": update.epoch() + 1, "loss": loss.to_string(),
            "gradient_norm": norm.to_string(), "skipped": skipped, "lines": lines,
        }));
    }

    /// Progress after every update, and a line of the log every `log_every`.
    pub(super) fn report(&mut self, update: &Update, callbacks: &dyn Callbacks) {
        let step = self.state.step;
        let counts = update.outcome.counts;
        let observed = Observed { loss: update.loss(), tokens: counts.tokens, pairs: counts.pairs };
        if let Some(usual) = self.state.health.observe(observed) {
            let (loss, lines) = (update.loss(), callbacks.lines(update.pairs()));
            self.log.line(&format!(
                "note: the loss of update {step} is {loss:.3}, where {usual:.3} is usual for sentences of this length; \
                 it was computed from {}",
                in_words(&lines)
            ));
            self.log.entry(&json!({
                "event": "spike", "update": step, "epoch": update.epoch() + 1, "loss": loss, "usual": usual,
                "gradient_norm": update.outcome.gradient_norm, "lines": lines,
            }));
        }
        let window = &mut self.state.window;
        window.smoothed += update.outcome.sums.smoothed;
        window.nll += update.outcome.sums.nll;
        window.tokens += counts.tokens;
        self.session.updates += 1;
        let important = step.is_multiple_of(self.config.log_every);
        let tokens = window.tokens as f64;
        let (loss, perplexity) = (window.smoothed / tokens, (window.nll / tokens).exp());
        let rate = tokens / (self.state.seconds - window.since).max(1e-9);
        let idle = if important {
            self.backend.communicator().map(Communicator::idle).unwrap_or_default()
        } else {
            Vec::new()
        };
        let mean = idle.iter().map(|idle| idle.share).sum::<f64>() / idle.len().max(1) as f64;
        let waiting = if idle.is_empty() {
            String::new()
        } else {
            format!(" on {} ranks, idle {:.0} %", idle.len(), 100.0 * mean)
        };
        let text = format!(
            "epoch {} loss {loss:.3} ppl {perplexity:.2} lr {:.2e} {rate:.0} tok/s{waiting}",
            update.epoch() + 1,
            update.learning_rate()
        );
        self.tell_of_slow_rank(&idle);
        self.log.progress(step, text, important);
        if important {
            let mut entry = json!({
                "event": "train", "update": step, "epoch": update.epoch() + 1, "loss": loss, "perplexity": perplexity,
                "learning_rate": update.learning_rate(), "gradient_norm": update.outcome.gradient_norm,
                "target_tokens": self.state.target_tokens, "tokens_per_second": rate,
                "seconds": self.state.seconds, "saving_seconds": self.session.saving.as_secs_f64(),
                "skipped": self.state.health.skipped,
                "memory": crate::device::resident_memory(),
            });
            if !idle.is_empty() {
                entry["ranks"] = idle.len().into();
                entry["idle"] = idle.iter().map(|idle| (1000.0 * idle.share).round() / 1000.0).collect();
            }
            self.log.entry(&entry);
            self.begin_window();
        }
    }

    /// Names the rank for which the others wait, once.
    fn tell_of_slow_rank(&mut self, idle: &[Idle]) {
        let by_share = |a: &(usize, &Idle), b: &(usize, &Idle)| a.1.share.total_cmp(&b.1.share);
        let Some((rank, slow)) = idle.iter().enumerate().min_by(by_share) else { return };
        let others: Vec<f64> =
            idle.iter().enumerate().filter(|(other, _)| *other != rank).map(|(_, it)| it.share).collect();
        let least = others.iter().copied().fold(1.0, f64::min);
        if least - slow.share > SLOW && self.session.updates > WARM_UP && !self.session.slow_told {
            self.session.slow_told = true;
            self.log.line(&format!(
                "note: the other ranks wait for rank {rank} on {}, which is slower, for {:.0} % of the time",
                in_one_line(&slow.host),
                100.0 * (least - slow.share)
            ));
        }
    }

    fn begin_window(&mut self) {
        self.state.window = Window { since: self.state.seconds, ..Window::default() };
    }

    /// Tells of a validation; the state has taken note of its standing among those before. Afterwards the clock's time
    /// is that of the state.
    pub(super) fn tell_validation(&mut self, result: &Validation, standing: Standing, clock: &Clock) {
        let (step, better) = (self.state.step, standing.is_best());
        let ValidConfig { metric, patience, patience_after, .. } = *self.valid;
        let head = match standing.place {
            Some(0) => Some("best so far".to_owned()),
            Some(place) => Some(format!("number {} of the best", place + 1)),
            None => (patience > 0 || standing.is_by_loss).then(|| "no better".to_owned()),
        };
        let of_patience = match patience {
            _ if better || patience == 0 => None,
            _ if self.state.lowest_loss == Some(result.loss) => Some("but the loss is the lowest so far".to_owned()),
            _ if step < patience_after => Some(format!("patience counts from update {patience_after} on")),
            _ => Some(format!("{} of {patience}", self.state.stale)),
        };
        let of_loss = standing.is_by_loss.then(|| {
            let loss = if better { "lower" } else { "higher" };
            format!("{} differs by no more than chance, and the loss is {loss}", metric.label())
        });
        let details: Vec<String> = of_patience.into_iter().chain(of_loss).collect();
        let note = match head {
            Some(head) if details.is_empty() => format!(" ({head})"),
            Some(head) => format!(" ({head}: {})", details.join("; ")),
            None => String::new(),
        };
        let seconds = clock.seconds() - self.state.seconds;
        self.state.seconds += seconds;
        self.log.line(&format!("valid at {step}: {result}{note} [{seconds:.1} s]"));
        result.monitored_lines().for_each(|line| self.log.line(&line));
        for sample in &result.samples {
            self.log.line(sample);
        }
        // Guessing has a perplexity of as many as there are pieces, and a model just initialised hardly more.
        let pieces = self.model.vocabulary().target as f64;
        if step > 0 && result.perplexity > 8.0 * pieces {
            self.log.line("note: this is far worse than guessing: the learning rate is probably too high");
        }
        let alike = result.repeated.as_ref().filter(|_| step >= USUALLY_ALIKE && !self.session.repeated_told);
        if let Some((text, count)) = alike {
            self.session.repeated_told = true;
            let translation = in_few_letters(text);
            self.log.line(&format!(
                "note: most sources ({count}) have {translation}: the model does not look at the source yet. If that \
                 stays so, try a lower learning rate, a longer warm-up or model.norm = \"pre\"; with few updates to \
                 make, a shorter warm-up"
            ));
        }
        self.log.samples(Samples { update: step, is_final: false, explained: &result.explained });
        let more = json!({
            "best": better, "stale": self.state.stale, "samples": result.samples, "seconds": self.state.seconds,
            "validation_seconds": seconds,
        });
        // Before the entry of the validation, at which the page is written.
        for entry in result.monitored_entries(step, &json!({ "seconds": self.state.seconds, "model": null })) {
            self.log.entry(&entry);
        }
        self.log.entry(&result.entry("valid", step, more));
        // The time for showing the samples is not counted in the next window.
        self.state.seconds = clock.seconds();
        self.begin_window();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translations_are_named_in_few_letters() {
        assert_eq!(in_few_letters(""), "an empty translation");
        assert_eq!(in_few_letters("Ein Mann."), "the same translation, \"Ein Mann.\"");
        assert_eq!(in_few_letters(&"ü".repeat(60)), format!("the same translation, \"{}\"", "ü".repeat(60)));
        assert_eq!(in_few_letters(&"ü".repeat(61)), format!("the same translation, \"{}…\"", "ü".repeat(60)));
    }
}
