//! `mt embed`

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use super::input::Lines;
use super::model;
use super::output::{Output, refuse_inputs};
use crate::cli::{Common, EmbedArgs};
use crate::decode::source::{self, Reader};
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::model::pooling::{Pooling, pool};
use crate::ops::Mode;

/// Writes one vector for each line, in order: as JSON, or all together as the tensor `embeddings` [lines, D].
pub fn run(args: &EmbedArgs, common: &Common) -> Result<()> {
    let pooling = pooling(&args.pool)?;
    if args.batch_tokens == Some(0) {
        return Err(Error::usage("--batch-tokens must be at least 1"));
    }
    let loaded = model::load(&args.model, common)?;
    let reader = Reader::new(&loaded.model, &loaded.tokenizers);
    let batch_tokens = args.batch_tokens.unwrap_or(loaded.config.decode.batch_tokens);
    let mut lines = Lines::open(&args.text, args.input.as_deref())?;
    refuse_inputs(args.output.as_deref(), lines.path())?;
    let tensor_file = args.output.as_deref().filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    let mut output = None;
    let mut all: Vec<f32> = Vec::new();
    let mut cut = 0;
    loop {
        let window = lines.next()?;
        if window.is_empty() {
            break;
        }
        let (window, refused) = lines.split_at_refused(&window, &reader);
        let (vectors, longer) = embed(&loaded.model, &reader, window, pooling, batch_tokens)?;
        cut += longer;
        if tensor_file.is_some() {
            all.extend(vectors.into_iter().flatten());
        } else {
            // Opening empties a file: not before the input has shown that it can be read.
            let output = match &mut output {
                Some(output) => output,
                None => output.insert(Output::open(args.output.as_deref())?),
            };
            for vector in &vectors {
                output.line(&serde_json::json!(vector).to_string())?;
            }
            output.flush()?;
            if output.is_closed() {
                break;
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
    }
    if !common.quiet {
        lines.warn();
        if cut > 0 {
            crate::console::message(format_args!(
                "warning: {cut} lines are longer than model.max_length: only their beginning was taken"
            ));
        }
    }
    match (tensor_file, output) {
        (Some(path), _) => write_tensor(path, &all, loaded.config.model.d_model),
        // Without a single line: an empty file all the same.
        (None, None) => Output::open(args.output.as_deref())?.flush(),
        (None, Some(mut output)) => output.flush(),
    }
}

fn pooling(name: &str) -> Result<Pooling> {
    let all = [Pooling::Mean, Pooling::Max, Pooling::First];
    all.into_iter().find(|pooling| pooling.name() == name).ok_or_else(|| {
        let error = Error::usage(format!("--pool cannot be `{name}`"));
        error.help(format!("one of {}", Pooling::NAMES.join(", ")))
    })
}

/// Vectors of lines, in order, and how many lines were cut.
fn embed(
    model: &Transformer,
    reader: &Reader,
    lines: &[String],
    pooling: Pooling,
    batch_tokens: usize,
) -> Result<(Vec<Vec<f32>>, usize)> {
    let mut sources = reader.read(lines);
    source::by_length(&mut sources);
    let mut vectors = vec![Vec::new(); lines.len()];
    for batch in source::batches(&sources, batch_tokens) {
        let memory = model.encode(&reader.sequences(batch), &Mode::INFERENCE)?;
        for (source, vector) in batch.iter().zip(pool(&memory, pooling)?) {
            vectors[source.line] = vector;
        }
    }
    Ok((vectors, sources.iter().filter(|source| source.cut).count()))
}

fn write_tensor(path: &Path, values: &[f32], d: usize) -> Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let whole = TensorView::new(Dtype::F32, vec![values.len() / d, d], &bytes);
    let whole = whole.map_err(|e| Error::failure("the vectors do not fit into a tensor").caused_by(e))?;
    safetensors::serialize_to_file([("embeddings", whole)], None, path)
        .map_err(|e| Error::failure(format!("cannot write the vectors: {e}")).at(path).caused_by(e))
}
