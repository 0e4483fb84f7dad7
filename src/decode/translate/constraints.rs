//! What is demanded of the translation of a line, from text to tokens.

use std::collections::HashMap;
use std::sync::Arc;

use super::{TranslateOptions, Translator};
use crate::decode::avoid::contains;
use crate::decode::source::{Source, with_language};
use crate::decode::surfaces::begins_in_word;
use crate::decode::{Avoid, Avoided, Demands, Phrases};
use crate::error::Result;
use crate::escape::quoted;
use crate::limits::PHRASES_BYTES;

/// What is demanded of the translation of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// What it begins with; its last word may go on.
    pub prefix: String,
    /// What it contains, as whole words.
    pub must: Vec<String>,
    /// What it does not contain, as whole words.
    pub avoid: Vec<String>,
}

/// Why a demand cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// What can be done.
    pub help: &'static str,
}

impl Fault {
    fn new(what: impl Into<String>, help: &'static str) -> Self {
        Self { what: what.into(), help }
    }
}

impl Translator {
    /// That the language of a source is unknown, if a model has several.
    pub fn lacks_source_language(&self, line: &str) -> Option<Fault> {
        let help = "give --from LANGUAGE (`mt info MODEL` lists them), or begin the line with it, as in >>eng_Latn<<";
        let lacks = self.readers.iter().any(|reader| reader.lacks_language(line));
        lacks.then(|| Fault::new("the model has many languages, and the line's is not known", help))
    }

    /// That it is unknown into which language to translate, if the models have several.
    pub fn lacks_target_language(&self, constraints: &Constraints) -> Option<Fault> {
        let help = "give --to LANGUAGE (`mt info MODEL` lists them)";
        let lacks = self.language.is_none()
            && !self.target.languages().is_empty()
            && self.target.language_tag(&constraints.prefix).is_none();
        lacks.then(|| Fault::new("the model has many languages, and it is not known into which to translate", help))
    }

    /// Why the translation of a line cannot be as it is demanded to be, if it cannot.
    pub fn fault(&self, line: &str, constraints: &Constraints, options: &TranslateOptions) -> Option<Fault> {
        /// For characters that the vocabulary lacks.
        const UNKNOWN: &str = "`mt tokenize --target` shows what it does not know";
        let Constraints { prefix, must, avoid } = constraints;
        let demands = !must.is_empty() || !prefix.trim().is_empty();
        let is_blank = demands && self.readers[0].read(&[line]).iter().all(|source| source.ids.is_empty());
        if is_blank && !must.is_empty() {
            return Some(Fault::new("a blank line has a blank translation, without any phrase", "leave `must` out"));
        }
        if is_blank {
            let what = "a blank line has a blank translation, without any prefix";
            return Some(Fault::new(what, "leave `prefix` out, or its line of --prefix-file blank"));
        }
        let bytes = must.iter().chain(avoid).map(String::len).sum::<usize>();
        if bytes > PHRASES_BYTES {
            let what = format!("the phrases of the line have {bytes} bytes together, more than {PHRASES_BYTES}");
            return Some(Fault::new(what, "ask for less"));
        }
        if !must.is_empty() && !options.strategy.takes_phrases() {
            let what = "a required phrase needs beam search";
            return Some(Fault::new(
                what,
                "leave `must` out, or the flags that ask for another search, such as --sample",
            ));
        }
        let prefix_tokens = self.prefix_tokens(prefix);
        if prefix_tokens.contains(&self.target.unk_id()) {
            let what = format!("the target vocabulary cannot write all of the prefix {}", quoted(prefix));
            return Some(Fault::new(what, UNKNOWN));
        }
        if let Some(blank) = must.iter().chain(avoid).find(|phrase| self.written(phrase).is_empty()) {
            return Some(Fault::new(format!("the phrase {} is blank", quoted(blank)), "leave it out"));
        }
        if let Some(phrase) = must.iter().find(|phrase| self.forms(phrase).is_empty()) {
            return Some(Fault::new(format!("the target vocabulary cannot write all of {}", quoted(phrase)), UNKNOWN));
        }
        let demanded: Vec<_> = must.iter().chain([prefix]).map(|text| (text, self.written(text))).collect();
        for phrase in avoid {
            let written = self.written(phrase);
            if let Some((text, _)) = demanded.iter().find(|(_, demanded)| contains(demanded, &written)) {
                let (phrase, text) = (quoted(phrase), quoted(text));
                let what = format!("{phrase} is to be avoided, but is part of {text}, which is asked for");
                return Some(Fault::new(what, "leave one of them out"));
            }
        }
        // A phrase that is given twice counts twice.
        let tokens_of = |phrase: &String| self.forms(phrase).iter().map(Vec::len).max().unwrap_or(0);
        let tokens = prefix_tokens.len() + must.iter().map(tokens_of).sum::<usize>();
        let positions = self.models.max_positions() - 1;
        let most = options.max_length.unwrap_or(positions).min(positions);
        let what = if must.is_empty() { "the prefix has" } else { "the prefix and the phrases have up to" };
        (tokens > most).then(|| {
            Fault::new(
                format!("{what} {tokens} tokens, but a translation has at most {most}"),
                "demand less, or raise --max-length up to model.max_length",
            )
        })
    }

    /// The demands on each source; empty if there are none. In a line in parts, each phrase goes to the part whose
    /// score it lowers least.
    pub(super) fn demands(
        &self,
        sources: &[Vec<Source>],
        constraints: &[Constraints],
        options: &TranslateOptions,
    ) -> Result<Vec<Demands>> {
        if self.language.is_none() && constraints.iter().all(|of_line| *of_line == Constraints::default()) {
            return Ok(Vec::new());
        }
        let none = Constraints::default();
        // The same phrases are often avoided in every line.
        let mut avoided: HashMap<&str, Arc<Avoided>> = HashMap::new();
        let mut demands = Vec::with_capacity(sources[0].len());
        for source in &sources[0] {
            let Constraints { prefix, avoid, .. } = constraints.get(source.line).unwrap_or(&none);
            let is_later = source.part > 0;
            // Tags apply to the whole line.
            let prefix = if is_later { self.target.leading(prefix) } else { prefix };
            for phrase in avoid {
                let new = || Arc::new(Avoided::new(&self.written(phrase), self.surfaces()));
                avoided.entry(phrase).or_insert_with(new);
            }
            let phrases: Vec<Arc<Avoided>> = avoid.iter().map(|phrase| avoided[phrase.as_str()].clone()).collect();
            let avoid = (!avoid.is_empty()).then(|| Arc::new(Avoid::new(phrases, self.surfaces(), is_later)));
            demands.push(Demands { prefix: self.prefix_tokens(prefix), must: None, avoid });
        }
        if constraints.is_empty() {
            return Ok(demands);
        }
        let placed = self.placed(sources, constraints, &demands, options)?;
        for (demands, phrases) in demands.iter_mut().zip(placed) {
            demands.must = (!phrases.is_empty()).then(|| Arc::new(self.phrases(phrases.into_iter())));
        }
        Ok(demands)
    }

    /// For each source, the phrases that its translation must contain. For a line in parts, each phrase is tried with
    /// each part, and goes to the part whose score falls least.
    fn placed<'c>(
        &self,
        sources: &[Vec<Source>],
        constraints: &'c [Constraints],
        demands: &[Demands],
        options: &TranslateOptions,
    ) -> Result<Vec<Vec<&'c String>>> {
        let mut placed: Vec<Vec<&String>> = vec![Vec::new(); sources[0].len()];
        // The first source of each line, and how many it has.
        let parts: Vec<(usize, usize)> = (sources[0].chunk_by(|a, b| a.line == b.line))
            .scan(0, |first, parts| {
                *first += parts.len();
                Some((*first - parts.len(), parts.len()))
            })
            .collect();
        // Of each trial the source, and the phrase if it is with one.
        let mut trials: Vec<(usize, Option<&String>)> = Vec::new();
        for (first, count) in parts.iter().copied() {
            let must = &constraints[sources[0][first].line].must;
            match count {
                1 => placed[first] = must.iter().collect(),
                _ if must.is_empty() => {}
                _ => (first..first + count).for_each(|source| {
                    trials.push((source, None));
                    trials.extend(must.iter().map(|phrase| (source, Some(phrase))));
                }),
            }
        }
        if trials.is_empty() {
            return Ok(placed);
        }
        let tried: Vec<Vec<Source>> = sources
            .iter()
            .map(|of_model| trials.iter().map(|(source, _)| of_model[*source].clone()).collect())
            .collect();
        let with = |(source, phrase): &(usize, Option<&String>)| Demands {
            must: phrase.map(|phrase| Arc::new(self.phrases([phrase].into_iter()))),
            ..demands[*source].clone()
        };
        let demanded: Vec<Demands> = trials.iter().map(with).collect();
        let found = self.models.translate(&tried, &demanded, options, |_| true)?.unwrap_or_default();
        let scores = found.iter().map(|n_best| n_best.first().map_or(f64::NEG_INFINITY, |best| best.score));
        let mut costs: HashMap<(usize, &String), f64> = HashMap::new();
        let mut free = f64::NEG_INFINITY;
        for ((source, phrase), score) in trials.iter().zip(scores) {
            match phrase {
                None => free = score,
                Some(phrase) => drop(costs.insert((*source, phrase), free - score)),
            }
        }
        for (first, count) in parts.into_iter().filter(|(_, count)| *count > 1) {
            for phrase in &constraints[sources[0][first].line].must {
                let cost = |source: &usize| costs.get(&(*source, phrase)).copied().unwrap_or(f64::INFINITY);
                let cheapest = (first..first + count).min_by(|a, b| cost(a).total_cmp(&cost(b)));
                placed[cheapest.unwrap_or(first)].push(phrase);
            }
        }
        Ok(placed)
    }

    /// The tokens of a prefix.
    fn prefix_tokens(&self, prefix: &str) -> Vec<u32> {
        // White space at its end would be doubled: the next piece begins with its own.
        let prefix = prefix.trim_end();
        match &self.language {
            Some(language) if prefix.is_empty() => self.target.encode(language),
            language => self.target.encode(&with_language(&self.target, language.as_deref(), prefix)),
        }
    }

    fn phrases<'p>(&self, phrases: impl Iterator<Item = &'p String>) -> Phrases {
        Phrases::new(phrases.map(|phrase| self.forms(phrase)), self.surfaces())
    }

    /// A phrase in the form of translations; blank if normalising leaves nothing.
    fn written(&self, phrase: &str) -> String {
        let tokens = self.target.encode(phrase.trim());
        if tokens.contains(&self.target.unk_id()) {
            return self.target.plain(phrase.trim()).into_owned();
        }
        String::from_utf8_lossy(&self.surfaces().texts(&tokens)).trim().to_owned()
    }

    /// The tokens of a phrase: as at the beginning of a text, as after a space and, of a phrase that may follow other
    /// text without a space, as after other text. None if the vocabulary cannot write it.
    fn forms(&self, phrase: &str) -> Vec<Vec<u32>> {
        let (phrase, written) = (phrase.trim(), self.written(phrase));
        let after = |before: &str| -> Option<Vec<u32>> {
            let whole = self.target.encode(&format!("{before}{phrase}"));
            whole.strip_prefix(&self.target.encode(before.trim_end())[..]).map(<[u32]>::to_vec)
        };
        let joined: &[&str] = if begins_in_word(written.as_bytes()) { &[] } else { &["a", "1", "。"] };
        let spaced = ["", "a ", "1 ", ". "];
        let mut forms: Vec<Vec<u32>> = spaced.iter().chain(joined).filter_map(|before| after(before)).collect();
        let is_it = |form: &Vec<u32>| {
            let is_known = !form.is_empty() && !form.contains(&self.target.unk_id());
            is_known && String::from_utf8_lossy(&self.surfaces().texts(form)).trim() == written
        };
        forms.retain(is_it);
        forms.sort_unstable();
        forms.dedup();
        forms
    }
}
