//! The texts that `mt eval` scores: translations in files, or a model's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::perplexity::Perplexity;
use crate::checkpoint;
use crate::cli::{Common, EvalArgs, ModelsArgs, SetArgs};
use crate::commands::shared::input::{is_stdin, shown_name, with_tag};
use crate::commands::shared::languages;
use crate::commands::shared::output::{Replacement, refuse_inputs, refuse_unwritable};
use crate::commands::shared::suspicious::SuspiciousLines;
use crate::commands::shared::test_set::{
    OwnSet, TestText, Text, align, as_scored, check_counts, nothing_to_score, read_versions,
};
use crate::commands::shared::{decoding, model};
use crate::console::{Counted, note, progress_bar, tell, warning};
use crate::data::CorpusLocation;
use crate::data::corpus::Side;
use crate::data::tags::is_read_as_text;
use crate::data::text::documents::{Part, Place};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::decode::source::Long;
use crate::decode::translate::{TranslateOptions, Translator};
use crate::error::{Error, Result};
use crate::metrics::{BleuOptions, Tokenize};
use crate::model_dir::ModelFiles;
use crate::run::validator;

/// A system's name and its translations.
pub(super) type System = (String, Vec<String>);

/// The texts to score.
pub(super) struct TestSet {
    /// Sources as a reader would see them, if known.
    pub sources: Option<Vec<String>>,
    /// One or more for each source.
    pub references: Vec<Vec<String>>,
    /// The systems with their translations.
    pub systems: Vec<System>,
    /// Of documents: where each line is.
    pub places: Vec<Place>,
    /// How well the model predicts the first reference, if wanted.
    pub perplexity: Option<Perplexity>,
    /// The text that the model was trained on.
    pub training: Vec<CorpusLocation>,
    /// The model's target tokenizer, which turns that text into the form for readers.
    pub target: Option<Arc<Tokenizer>>,
    /// The default options of BLEU, which flags may change. If they ignore case, so does chrF.
    pub scoring: BleuOptions,
}

/// Translations in files.
pub(super) fn score_files(args: &EvalArgs) -> Result<TestSet> {
    let is_needed = args.report || args.metrics.neural() > 0;
    if args.set.reference.is_empty() && (args.report || args.metrics.compares()) {
        return Err(Error::usage("--hyp without --ref").help("name the reference translations with --ref"));
    }
    if args.set.src.is_some() && !is_needed {
        let error = Error::usage("--src is not needed to score the translations given with --hyp");
        return Err(error.help("leave it out, or give --report, --comet or --qe"));
    }
    let read = |paths: &[PathBuf], part: Part| -> Result<Vec<TestText>> {
        let versions = paths.iter().map(|path| read_versions(path, part)).collect::<Result<Vec<_>>>()?;
        Ok(versions.into_iter().flatten().collect())
    };
    let mut references = read(&args.set.reference, Part::References)?;
    let mut sources = read(args.set.src.as_slice(), Part::Sources)?;
    let mut systems = read(&args.hyp, Part::Translations)?;
    let places = align(&mut [&mut sources, &mut references, &mut systems])?;
    let scored = |version: &TestText| {
        if version.lines.byte_order_mark {
            let name = shown_name(&version.path).display();
            warning(format_args!(
                "{name} begins with a byte order mark, which counts as a part of its first word, as it does in \
                 sacrebleu: remove it"
            ));
        }
        as_scored(&version.lines)
    };
    let references: Vec<(PathBuf, Vec<String>)> =
        references.into_iter().map(|version| (version.path.clone(), scored(&version))).collect();
    if let Some((file, lines)) = references.first()
        && lines.is_empty()
    {
        return Err(nothing_to_score(file));
    }
    let mut first: Option<(PathBuf, usize)> = None;
    let mut aligned = |path: &PathBuf, lines: Vec<String>| -> Result<Vec<String>> {
        check_counts(path, lines.len(), &references)?;
        // Without references, with one another.
        let (before, count) = first.get_or_insert_with(|| (path.clone(), lines.len()));
        if *count != lines.len() {
            let [path, before] = [path, &*before].map(|path| shown_name(path).display().to_string());
            let what = format!("{path} has {} lines, but {before} has {count}", lines.len());
            return Err(Error::failure(what).help("translations and sources must be aligned line by line"));
        }
        Ok(lines)
    };
    let source = |version: &TestText| aligned(&version.path, as_scored(&version.lines));
    let source = sources.first().map(source).transpose()?;
    let system = |version: &TestText| Ok((version.name(), aligned(&version.path, scored(version))?));
    let systems: Vec<System> = systems.iter().map(system).collect::<Result<_>>()?;
    if let (Some((name, lines)), true) = (systems.first(), references.is_empty())
        && lines.is_empty()
    {
        return Err(nothing_to_score(Path::new(name)));
    }
    Ok(TestSet {
        sources: source,
        systems,
        references: references.into_iter().map(|(_, lines)| lines).collect(),
        places,
        perplexity: None,
        training: Vec::new(),
        target: None,
        scoring: BleuOptions::default(),
    })
}

/// The test set, translated by each of several models separately so that they can be compared.
pub(super) fn translate_apart(args: &EvalArgs, common: &Common) -> Result<TestSet> {
    let refuse = |flag: &str, help: &str| {
        let what = format!("{flag} is for one translation, but a paired test has one translation for each model");
        Err(Error::usage(what).help(help))
    };
    if args.output.is_some() {
        return refuse("--output", "translate with each model, and compare the files with --hyp");
    }
    if args.metrics.ppl {
        return refuse("--ppl", "ask for it for each model separately");
    }
    if !args.models.weights.is_empty() {
        let what = "--weights is for models that translate together, but a paired test has them translate apart";
        return Err(
            Error::usage(what).help("leave it out, or write the ensemble's translations, and compare with --hyp")
        );
    }
    if [&args.set.src].into_iter().flatten().chain(&args.set.reference).any(|path| is_stdin(path)) {
        return Err(Error::usage("stdin can be read only once, but each model needs it").help("name a file"));
    }
    // Translating takes long: first make sure that there are models and that their test sets are the same.
    let mut knows_tag = false;
    for model in &args.models.model {
        let named = crate::model_dir::directory(Some(model), common.offline, &tell)?;
        let directory = checkpoint::directory_and_step(&named).0;
        crate::model_dir::config_of(directory)?;
        if let Some(tag) = &args.set.tag {
            knows_tag |= !is_read_as_text(tag, &Tokenizers::load(directory)?.source);
        }
    }
    let mut tasks: Vec<(String, Task)> = Vec::new();
    for model in &args.models.model {
        let models =
            ModelsArgs { model: vec![model.clone()], checkpoint: args.models.checkpoint.clone(), weights: Vec::new() };
        let (name, task) = (model.display().to_string(), Task::find(args, &models, knows_tag, common)?);
        if let Some((first, of_first)) = tasks.first()
            && (of_first.sources(), of_first.references()) != (task.sources(), task.references())
        {
            let what = format!("{name} has a different test set from {first}");
            return Err(Error::usage(what).help("name one test set for all with --src and --ref"));
        }
        tasks.push((name, task));
    }
    let mut whole: Option<TestSet> = None;
    for (name, task) in tasks {
        let mut set = task.translate(args, true, common)?;
        set.systems.iter_mut().for_each(|system| system.0.clone_from(&name));
        let Some(first) = &mut whole else {
            whole = Some(set);
            continue;
        };
        first.systems.append(&mut set.systems);
        let [here, there] = [first.scoring.tokenize, set.scoring.tokenize].map(Tokenize::name);
        if here != there && args.metrics.tokenize.is_none() {
            note(format_args!(
                "{name} counts {there} words (`valid.tokenize`): here BLEU is of {here} words (--tokenize)"
            ));
        }
        // A model that writes lower case can only be compared by ignoring case.
        first.scoring.lowercase |= set.scoring.lowercase;
    }
    whole.ok_or_else(|| Error::usage("there is no model").help("give several --model"))
}

/// The test set, translated by a model (or an ensemble of several) if translations are wanted.
pub(super) fn translate_together(
    args: &EvalArgs,
    models: &ModelsArgs,
    translations_wanted: bool,
    common: &Common,
) -> Result<TestSet> {
    if !translations_wanted && args.output.is_some() {
        let error = Error::usage("--ppl alone translates nothing, so there is nothing to write to --output");
        return Err(error.help("add --bleu, or leave --output out"));
    }
    Task::find(args, models, false, common)?.translate(args, translations_wanted, common)
}

/// A model or an ensemble, and its test set.
struct Task {
    model: ModelFiles,
    others: Vec<ModelFiles>,
    options: TranslateOptions,
    text: Text,
}

impl Task {
    /// Finds the model and the text, without reading weights. `another_knows_tag`: another model of the comparison
    /// knows `--tag`.
    fn find(args: &EvalArgs, models: &ModelsArgs, another_knows_tag: bool, common: &Common) -> Result<Self> {
        let SetArgs { src, reference, tag, languages, .. } = &args.set;
        if src.is_none() && !reference.is_empty() {
            let error = Error::usage("--ref without --hyp or --src");
            return Err(error.help(
                "to score existing translations, name them with --hyp; to translate and score, give --src and --ref, \
                 or neither for the model's test set",
            ));
        }
        if args.metrics.ppl && args.decode.shortlist.is_some() {
            let error = Error::usage("--ppl needs all target tokens, but --shortlist leaves most of them out");
            return Err(error.help("leave one of the two out"));
        }
        let (mut model, mut others) = model::load_all(models, common)?;
        let options = decoding::translate_options(&args.decode, None, (&model, &others), common)?;
        if let (None, Some(test)) = (src, &model.config.data.test) {
            let own = test.languages.clone();
            let all = std::iter::once(&mut model).chain(&mut others);
            languages::state(own, "data.test", all)?;
        }
        let all = std::iter::once(&mut model).chain(&mut others);
        let tag = languages::choose(languages, tag.as_deref(), all)?;
        let tag = tag.as_deref().filter(|tag| {
            // It would read it as text.
            let is_without = another_knows_tag && is_read_as_text(tag, &model.tokenizers.source);
            if is_without {
                note(format_args!("{} has no tags: {tag} is not put before its sources", model.directory().display()));
            }
            !is_without
        });
        let own = OwnSet { key: "data.test", name: "test set", set: model.config.data.test.as_ref() };
        let text = Text::find(&args.set, &own, tag, &model, common)?;
        let of_models = crate::model_dir::files_of(&model, &others);
        let inputs = text.reference.iter().chain([&text.source]).chain(&args.decode.shortlist).chain(&args.train_text);
        let of_data: Vec<PathBuf> = model.config.data.locations().flat_map(CorpusLocation::sides).collect();
        let of_judge = decoding::files_of_judge(&args.decode, common)?;
        let of_others = of_models.iter().chain(&of_judge).chain(&of_data);
        refuse_inputs(args.output.as_deref(), inputs.chain(of_others).map(PathBuf::as_path))?;
        args.output.as_deref().map_or(Ok(()), refuse_unwritable)?;
        Ok(Self { model, others, options, text })
    }

    /// Sources as a reader would see them, but with tags, which another model may take for text.
    fn sources(&self) -> Vec<String> {
        plain(&self.model.tokenizers.source, &self.text.sources)
    }

    /// References as a reader would see them.
    fn references(&self) -> Vec<Vec<String>> {
        self.text.references.iter().map(|lines| plain(&self.model.tokenizers.target, lines)).collect()
    }

    /// Translates the text if translations are wanted, and computes the perplexity that the flags ask for.
    fn translate(self, args: &EvalArgs, translations_wanted: bool, common: &Common) -> Result<TestSet> {
        let references = self.references();
        let sources = self.text.sources.iter().map(|line| self.model.tokenizers.source.readable(line)).collect();
        let Self { model, others, options, text } = self;
        let translator = decoding::translator_with_flags(&model, &others, &args.models.weights, &args.decode, common)?;
        let options = TranslateOptions { tag: text.tag.clone(), ..options };
        let tagged = with_tag(text.tag.as_deref(), text.sources);
        if options.long == Long::Error
            && let Some(beyond) = translator.beyond_positions(&tagged)
        {
            return Err(beyond.error(shown_name(&text.source), 1).help("give --long split, or split the line"));
        }
        languages::refuse_without(&translator, [&tagged, &text.predicted], |error, index, side| {
            let file = if side == Side::Source { &text.source } else { text.reference.first().unwrap_or(&text.source) };
            error.at_line(shown_name(file), index + 1, 0)
        })?;
        if translations_wanted {
            languages::refuse_unknown_target(&translator)?;
        }
        let perplexity = if args.metrics.ppl {
            let files = [&text.source, text.reference.first().unwrap_or(&text.source)];
            Some(Perplexity::new(&translator, files, [&tagged, &text.predicted], options.batch_tokens)?)
        } else {
            None
        };
        let mut systems = Vec::new();
        if translations_wanted {
            validator::normalisation_warning(&model.config, &model.tokenizers, "", &text.predicted)
                .iter()
                .for_each(warning);
            systems.push(("model".to_owned(), translations(&translator, &tagged, &options, args)?));
        }
        Ok(TestSet {
            sources: Some(sources),
            references,
            systems,
            places: text.places,
            perplexity,
            training: model.config.data.train.iter().map(|corpus| corpus.location.clone()).collect(),
            scoring: validator::scoring(&model.config, &model.tokenizers),
            target: Some(model.tokenizers.target),
        })
    }
}

/// Lines as a reader would see them.
fn plain(tokenizer: &Tokenizer, lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| tokenizer.plain(line).into_owned()).collect()
}

/// Translates the sources, and writes the translations to a file if the flags name one.
fn translations(
    translator: &Translator,
    sources: &[String],
    options: &TranslateOptions,
    args: &EvalArgs,
) -> Result<Vec<String>> {
    let bar = progress_bar(Counted::Sentences, Some(sources.len() as u64));
    let translations = translator.translate(sources, &[], options, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let mut suspicious = SuspiciousLines::new(translator);
    translations.iter().for_each(|translation| suspicious.count(translation));
    suspicious.warnings().into_iter().for_each(warning);
    let translations: Vec<String> = translations.iter().map(|t| t.best().text.clone()).collect();
    if let Some(path) = &args.output {
        let mut file = Replacement::open(path)?;
        translations.iter().try_for_each(|line| file.output().line(line))?;
        file.finish()?;
    }
    Ok(translations)
}
