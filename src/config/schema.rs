//! The table of keys: the keys of each section, their kinds of values, what depends on them, and what another value
//! means for a run that is continued. By default, such a run refuses another value.
//!
//! Names of choices and defaults come from the types; a test checks that the keys here are the types' fields.

use super::sections::MOST_THREADS;
use crate::data::SampledSide;
use crate::data::tokenizer::{Normalization, TokenizerKind};
use crate::decode::{MAX_ALPHA, MAX_BEAM, PenaltyKind};
use crate::infer::ComputeType;
use crate::key::*;
use crate::limits;
use crate::metrics::Tokenize;
use crate::model::{Activation, Init, NormKind, NormPlacement, PaddingMask, PositionKind, Preset, Sinusoid, Tie};
use crate::ops::matmul::Precision;
use crate::train::{ValidMetric, WantedPrecision, optimizer, schedule};

/// The sections.
pub(super) const ROOT: &[Key] = &[
    key("data", Kind::Table(DATA)),
    key("tokenizer", Kind::Table(TOKENIZER)).on_resume(OnResume::NoEffect),
    key("model", Kind::Table(MODEL)),
    key("train", Kind::Table(TRAIN)),
    key("valid", Kind::Table(VALID)),
    key("decode", Kind::Table(DECODE)),
    key("runtime", Kind::Table(RUNTIME)),
];

const FUNCTION: &[Decides] = &[Decides::Function];
/// A model of another shape also computes another function.
const SHAPE: &[Decides] = &[Decides::Shape, Decides::Function];
const BATCHES: &[Decides] = &[Decides::Batches];
const VALIDATION: &[Decides] = &[Decides::Validation];
const FILTER: &[Decides] = &[Decides::Batches, Decides::Filter];
const NO_MODEL: &[Decides] = &[Decides::NoModel];
/// How a model translates, which is how validations translate, too.
const SEARCH: &[Decides] = &[Decides::Validation, Decides::NoModel];

/// Up to the widest beam of the search.
const BEAM: Kind = Kind::Integer { least: 1, most: MAX_BEAM as i128 };

const DATA: &[Key] = &[
    key("root", Kind::Path).on_resume(OnResume::Free).decides(NO_MODEL),
    key("train", Kind::List(CORPUS)),
    // Its text is compared by checksum.
    key("valid", Kind::Table(SET)).on_resume(OnResume::Free),
    key("test", Kind::Table(SET)).on_resume(OnResume::Free),
    key("monitor", Kind::List(MONITORED)).on_resume(OnResume::Free).decides(NO_MODEL),
    key("max_length", POSITIVE).decides(FILTER),
    key("max_ratio", Kind::Number(Range::OffOrRatio)).decides(FILTER),
    key("quality", Kind::Table(QUALITY)),
    key("cache_above", COUNT).on_resume(OnResume::Free).decides(NO_MODEL),
    key("cache_dir", Kind::Path).on_resume(OnResume::Free).decides(NO_MODEL),
];

const QUALITY: &[Key] = &[
    Key { required: true, ..key("least", Kind::Number(Range::Around0(1e6))) }.decides(FILTER),
    key("model", Kind::Model).decides(FILTER),
    key("precision", Kind::Choice(ComputeType::NAMES)).decides(FILTER),
];

const CORPUS: &[Key] = &[
    required("source", Kind::Side),
    required("target", Kind::Side),
    key("tag", Kind::Text),
    key("source_language", Kind::Text),
    key("target_language", Kind::Text),
    key("weight", Kind::Number(Range::Weight)).decides(BATCHES),
    key("weights", Kind::Corpus),
    key("tsv", Kind::Corpus),
    HUB[0],
    HUB[1],
    HUB[2],
    HUB[3],
];

const SET: &[Key] = &[
    required("source", Kind::Side),
    required("target", Kind::Side),
    key("tag", Kind::Text),
    key("source_language", Kind::Text),
    key("target_language", Kind::Text),
    key("tsv", Kind::Corpus),
    HUB[0],
    HUB[1],
    HUB[2],
    HUB[3],
];

/// A name, and the keys of [`SET`].
const MONITORED: &[Key] = &{
    let mut keys = [key("name", Kind::Text); SET.len() + 1];
    let (_, of_set) = keys.split_at_mut(1);
    of_set.copy_from_slice(SET);
    keys
};

/// Keys that locate a corpus other than two files. Then `source` and `target` are columns.
pub(super) const FORMS: &[&str] = &["hub", "tsv"];

/// A split of a data set of the hub; `corpus` checks how the keys go together.
const HUB: [Key; 4] =
    [key("hub", Kind::Text), key("config", Kind::Text), key("split", Kind::Text), key("revision", Kind::Text)];

const TOKENIZER: &[Key] = &[
    key("path", Kind::Path),
    key("target_path", Kind::Path),
    key("kind", Kind::Choice(TokenizerKind::NAMES)),
    key("codes", Kind::Path),
    key("target_codes", Kind::Path),
    key("vocabulary", Kind::Path),
    key("target_vocabulary", Kind::Path),
    key("vocabulary_threshold", COUNT),
    key("vocab_size", Kind::Integer { least: limits::LEAST_PIECES as i128, most: 1 << 24 }),
    key("joint", Kind::Boolean),
    key("dropout", FRACTION).on_resume(OnResume::Refused),
    key("sampling", Kind::Table(SAMPLING)).on_resume(OnResume::Refused),
    key("normalization", Kind::Choice(Normalization::NAMES)),
    key("remove_extra_whitespaces", Kind::Boolean),
    key("lowercase", Kind::Boolean),
    key("max_piece_length", POSITIVE),
    key("character_coverage", Kind::Number(Range::Share)),
    key("tags", Kind::Texts),
    key("symbols", Kind::Texts),
    key("sample_lines", COUNT),
];

const SAMPLING: &[Key] = &[
    key("alpha", NOT_NEGATIVE).on_resume(OnResume::Refused),
    key("nbest", Kind::Integer { least: 0, most: limits::MOST_SEGMENTATIONS }).on_resume(OnResume::Refused),
    key("side", Kind::Choice(SampledSide::NAMES)).on_resume(OnResume::Refused),
    key("epochs", COUNT).on_resume(OnResume::Refused),
];

const MODEL: &[Key] = &[
    // Each key that it sets is compared itself.
    key("preset", Kind::Choice(Preset::NAMES)).on_resume(OnResume::Free),
    // Sinusoidal positions pair each sine with a cosine.
    key("d_model", Kind::Even { most: WIDTH }).decides(SHAPE),
    key("d_ff", WIDTH_KEY).decides(SHAPE),
    key("heads", WIDTH_KEY).decides(SHAPE),
    key("d_k", WIDTH_KEY).decides(SHAPE),
    key("d_v", WIDTH_KEY).decides(SHAPE),
    key("encoder_layers", LAYERS).decides(SHAPE),
    key("decoder_layers", LAYERS).decides(SHAPE),
    key("norm", Kind::Choice(NormPlacement::NAMES)).decides(SHAPE),
    key("final_norm", Kind::Boolean).decides(SHAPE),
    key("norm_kind", Kind::Choice(NormKind::NAMES)).decides(SHAPE),
    key("norm_eps", EPSILON).decides(FUNCTION),
    key("positions", Kind::Choice(PositionKind::NAMES)).decides(SHAPE),
    key("sinusoid", Kind::Choice(Sinusoid::NAMES)).decides(FUNCTION),
    key("first_position", Kind::Integer { least: 0, most: limits::MOST_POSITIONS }).decides(FUNCTION),
    key("padding_mask", Kind::Choice(PaddingMask::NAMES)).decides(FUNCTION),
    key("relative_buckets", Kind::Integer { least: 4, most: 1024 }).decides(SHAPE),
    key("relative_distance", Kind::Integer { least: 2, most: limits::MOST_POSITIONS }).decides(FUNCTION),
    key("tie", Kind::Choice(Tie::NAMES)).decides(SHAPE),
    key("scale_embedding", Kind::Boolean).decides(FUNCTION),
    key("embedding_norm", Kind::Boolean).decides(SHAPE),
    key("output_bias", Kind::Boolean).decides(SHAPE),
    key("output_padding", Kind::Boolean).decides(FUNCTION),
    key("attention_bias", Kind::Boolean).decides(SHAPE),
    key("activation", Kind::Choice(Activation::NAMES)).decides(FUNCTION),
    key("gated", Kind::Boolean).decides(SHAPE),
    key("feed_forward_bias", Kind::Boolean).decides(SHAPE),
    key("dropout", FRACTION),
    key("embedding_dropout", FRACTION),
    key("attention_dropout", FRACTION),
    key("activation_dropout", FRACTION),
    key("init", Kind::Choice(Init::NAMES)).on_resume(OnResume::AtStart),
    // Room for a piece and the end of the sentence.
    key("max_length", Kind::Integer { least: 2, most: limits::MOST_POSITIONS }).decides(&[Decides::Shape]),
];

const TRAIN: &[Key] = &[
    key("init", Kind::Path).on_resume(OnResume::AtStart),
    key("init_layers", Kind::Table(INIT_LAYERS)).on_resume(OnResume::AtStart),
    key("freeze", Kind::Texts),
    key("low_rank", Kind::Table(LOW_RANK)).on_resume(OnResume::AtStart),
    key("batch_tokens", POSITIVE).decides(BATCHES),
    key("accumulate", POSITIVE),
    key("max_updates", COUNT).on_resume(OnResume::Free),
    key("max_epochs", COUNT).on_resume(OnResume::Free),
    key("label_smoothing", FRACTION).decides(VALIDATION),
    key("r_drop", RATE_OR_0),
    key("clip_norm", RATE_OR_0).on_resume(OnResume::Noted),
    key("average_last", COUNT).on_resume(OnResume::Free),
    key("exponential_average", FRACTION),
    key("max_skipped", COUNT).on_resume(OnResume::Free).decides(NO_MODEL),
    key("save_every", Kind::Interval { least: 1 }).on_resume(OnResume::Free).decides(NO_MODEL),
    key("keep", POSITIVE).on_resume(OnResume::Free).decides(NO_MODEL),
    key("keep_best", POSITIVE).on_resume(OnResume::Free).decides(NO_MODEL),
    key("log_every", POSITIVE).on_resume(OnResume::Free).decides(NO_MODEL),
    key("seed", Kind::Integer { least: 0, most: i64::MAX as i128 }).decides(BATCHES),
    key("schedule", Kind::Tagged { default: "noam", variants: schedule::KINDS }).on_resume(OnResume::Noted),
    key("optimizer", Kind::Tagged { default: "adam", variants: optimizer::KINDS }),
];

/// The layers of each stack, by their numbers.
const INIT_LAYERS: &[Key] = &[
    key("encoder", Kind::Integers { most: MOST_LAYERS }).on_resume(OnResume::AtStart),
    key("decoder", Kind::Integers { most: MOST_LAYERS }).on_resume(OnResume::AtStart),
];

const LOW_RANK: &[Key] = &[
    key("rank", Kind::Integer { least: 1, most: limits::MOST_RANK }).on_resume(OnResume::AtStart),
    key("alpha", Kind::Number(Range::Rate)).on_resume(OnResume::AtStart),
    key("projections", Kind::Texts).on_resume(OnResume::AtStart),
    key("also", Kind::Texts).on_resume(OnResume::AtStart),
];

const VALID: &[Key] = &[
    key("every", Kind::Interval { least: 0 }).on_resume(OnResume::Free),
    key("on_start", Kind::Boolean).on_resume(OnResume::Free).decides(NO_MODEL),
    key("metric", Kind::Choice(ValidMetric::NAMES)).decides(VALIDATION),
    key("tokenize", Kind::Choice(Tokenize::NAMES)).decides(VALIDATION),
    key("beam", BEAM).on_resume(OnResume::Noted).decides(VALIDATION),
    key("patience", COUNT).on_resume(OnResume::Free),
    key("patience_after", COUNT).on_resume(OnResume::Free),
    key("samples", COUNT).on_resume(OnResume::Free).decides(NO_MODEL),
    key("max_sentences", COUNT).decides(VALIDATION),
    key("comet", COUNT).on_resume(OnResume::Free),
    key("comet_model", Kind::Model).on_resume(OnResume::Free).decides(VALIDATION),
];

const DECODE: &[Key] = &[
    key("beam", BEAM).on_resume(OnResume::Free).decides(NO_MODEL),
    key("length_penalty", Kind::Number(Range::Around0(MAX_ALPHA))).on_resume(OnResume::Free).decides(SEARCH),
    key("length_penalty_kind", Kind::Choice(PenaltyKind::NAMES)).on_resume(OnResume::Free).decides(SEARCH),
    key("patience", NOT_NEGATIVE).on_resume(OnResume::Free).decides(SEARCH),
    key("no_repeat_ngram", COUNT).on_resume(OnResume::Free).decides(SEARCH),
    key("min_length", COUNT).on_resume(OnResume::Free).decides(SEARCH),
    key("max_length_ratio", NOT_NEGATIVE).on_resume(OnResume::Free).decides(SEARCH),
    key("max_length_extra", COUNT).on_resume(OnResume::Free).decides(SEARCH),
    key("batch_tokens", POSITIVE).on_resume(OnResume::Free).decides(NO_MODEL),
    key("source_language", Kind::Text).on_resume(OnResume::Free).decides(NO_MODEL),
    key("target_language", Kind::Text).on_resume(OnResume::Free).decides(NO_MODEL),
];

const RUNTIME: &[Key] = &[
    key("device", Kind::Device).on_resume(OnResume::Free).decides(NO_MODEL),
    key("threads", Kind::Integer { least: 0, most: MOST_THREADS as i128 }).on_resume(OnResume::Free).decides(NO_MODEL),
    key("precision", Kind::Choice(WantedPrecision::NAMES)).on_resume(OnResume::Noted),
    key("follow_links", Kind::Boolean).on_resume(OnResume::Free).decides(NO_MODEL),
    key("reduce", Kind::Choice(Precision::NAMES)).on_resume(OnResume::Noted).decides(NO_MODEL),
    key("rank_timeout", Kind::Integer { least: 2, most: 86_400 }).on_resume(OnResume::Free).decides(NO_MODEL),
];

/// The key of that name.
pub(super) fn find<'k>(keys: &'k [Key], name: &str) -> Option<&'k Key> {
    keys.iter().find(|key| key.name == name)
}

/// The variant of that kind.
pub(super) fn variant<'v>(variants: &'v [Variant], kind: &str) -> Option<&'v Variant> {
    variants.iter().find(|variant| variant.kind == kind)
}

/// What the key at the end of a dotted path may hold; `None` if there is no such key (or only with some `kind`).
pub(super) fn lookup<'p>(path: impl IntoIterator<Item = &'p str>) -> Option<&'static Kind> {
    let mut parts = path.into_iter();
    let mut kind = &find(ROOT, parts.next()?)?.kind;
    for part in parts {
        kind = match kind {
            Kind::Table(keys) => &find(keys, part)?.kind,
            _ => return None,
        };
    }
    Some(kind)
}

/// What another value of a key, by its dotted name, means for a run that is continued.
pub fn on_resume(key: &str) -> OnResume {
    let mut keys = ROOT;
    let mut meaning = OnResume::Refused;
    for part in key.split('.') {
        let Some(found) = find(keys, part) else { break };
        meaning = found.on_resume.unwrap_or(meaning);
        keys = match found.kind {
            Kind::Table(keys) | Kind::List(keys) => keys,
            // All keys of such a table have one meaning.
            _ => break,
        };
    }
    meaning
}

/// The dotted names of the keys that decide this, in the order of the table.
pub fn that_decide(what: Decides) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    collect_deciding(what, "", ROOT, &mut found);
    found.into_iter()
}

fn collect_deciding(what: Decides, path: &str, keys: &[Key], found: &mut Vec<String>) {
    for key in keys {
        let inner = join(path, key.name);
        if let Kind::Table(keys) | Kind::List(keys) = key.kind {
            collect_deciding(what, &inner, keys, found);
        }
        if key.decides.contains(&what) {
            found.push(inner);
        }
    }
}

/// Whether a key, by its dotted name, decides this.
pub fn decides(key: &str, what: Decides) -> bool {
    that_decide(what).any(|deciding| deciding == key)
}

/// Dotted names of the tables, anywhere, that have a key called `name`.
pub(super) fn owners(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    collect_owners(name, "", ROOT, &mut found);
    found
}

fn collect_owners(name: &str, path: &str, keys: &[Key], found: &mut Vec<String>) {
    for key in keys {
        let inner = join(path, key.name);
        if key.name == name && !path.is_empty() {
            found.push(path.to_owned());
        }
        match &key.kind {
            Kind::Table(keys) => collect_owners(name, &inner, keys, found),
            Kind::Tagged { variants, .. } if variants.iter().any(|variant| find(variant.keys, name).is_some()) => {
                found.push(inner);
            }
            _ => {}
        }
    }
}

/// The names of all keys of all tables.
pub(super) fn names() -> Vec<&'static str> {
    fn collect(keys: &[Key], found: &mut Vec<&'static str>) {
        for key in keys {
            found.push(key.name);
            match key.kind {
                Kind::Table(keys) | Kind::List(keys) => collect(keys, found),
                Kind::Tagged { variants, .. } => variants.iter().for_each(|variant| collect(variant.keys, found)),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    collect(ROOT, &mut found);
    found
}

/// The kinds of the table `section` that have `key`, if its default kind does not.
pub(super) fn kinds_with(section: &str, key: &str) -> Vec<&'static str> {
    let (table, name) = section.rsplit_once('.').unwrap_or(("", section));
    let keys = match lookup(table.split('.')) {
        Some(Kind::Table(keys)) => *keys,
        _ => return Vec::new(),
    };
    match find(keys, name).map(|key| &key.kind) {
        Some(Kind::Tagged { default, variants }) => {
            let with = variants.iter().filter(|variant| find(variant.keys, key).is_some());
            let kinds: Vec<_> = with.map(|variant| variant.kind).collect();
            if kinds.contains(default) { Vec::new() } else { kinds }
        }
        _ => Vec::new(),
    }
}

/// `table.key`, or `key` at the top.
pub(super) fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, values};

    /// The table says which may change; here it is said again what must not, as a key may follow its table.
    #[test]
    fn what_an_update_computes_may_not_change() {
        let is_free = |key: &str| matches!(on_resume(key), OnResume::Free | OnResume::Noted);
        let mut config = Config::default();
        config.train.init = Some("model".into());
        let values = values(&config);
        let of_model = |key: &&String| ["model.", "tokenizer.", "data.max_"].iter().any(|part| key.starts_with(part));
        let of_model: Vec<_> = values.keys().filter(of_model).collect();
        assert!(of_model.len() > 30 && !of_model.iter().any(|key| is_free(key)), "{of_model:?}");
        let of_train: Vec<_> = values.keys().filter(|key| key.starts_with("train.") && !is_free(key)).collect();
        let fixed = [
            "accumulate",
            "batch_tokens",
            "exponential_average",
            "freeze",
            "init",
            "init_layers.decoder",
            "init_layers.encoder",
            "label_smoothing",
            "optimizer.betas",
            "optimizer.eps",
            "optimizer.kind",
            "optimizer.weight_decay",
            "r_drop",
            "seed",
        ];
        assert_eq!(of_train, fixed.map(|key| format!("train.{key}")).iter().collect::<Vec<_>>());
        assert!(!is_free("data.train.weight"));
    }

    /// If only these change, a run that has ended has its final model still.
    #[test]
    fn some_keys_decide_nothing_of_the_final_model() {
        let expected = "data.root data.monitor data.cache_above data.cache_dir train.max_skipped train.save_every \
                        train.keep train.keep_best train.log_every valid.on_start valid.samples decode.beam \
                        decode.length_penalty decode.length_penalty_kind decode.patience decode.no_repeat_ngram \
                        decode.min_length decode.max_length_ratio decode.max_length_extra decode.batch_tokens \
                        decode.source_language decode.target_language runtime.device runtime.threads \
                        runtime.follow_links runtime.reduce runtime.rank_timeout";
        assert_eq!(that_decide(Decides::NoModel).collect::<Vec<_>>().join(" "), expected);
    }

    /// A key of `[model]` of which nothing is said would be taken for one that no trained model depends on.
    #[test]
    fn it_is_said_what_depends_on_each_key_of_a_model() {
        let values = values(&Config::default());
        let of_model = || values.keys().filter_map(|key| Some((key, key.strip_prefix("model.")?)));
        let without = |what: &[Decides]| -> Vec<&str> {
            let decides = |key: &String| what.iter().any(|what| decides(key, *what));
            of_model().filter(|(key, _)| !decides(key)).map(|(_, name)| name).collect()
        };
        let of_training = ["activation_dropout", "attention_dropout", "dropout", "embedding_dropout", "init", "preset"];
        let stated = of_training.into_iter().filter(|name| values.contains_key(&format!("model.{name}")));
        assert_eq!(without(&[Decides::Shape, Decides::Function]), stated.collect::<Vec<_>>());
        let not_function = without(&[Decides::Function]);
        assert!(not_function.len() == without(&[Decides::Shape, Decides::Function]).len() + 1);
        assert!(not_function.contains(&"max_length"));
    }
}
