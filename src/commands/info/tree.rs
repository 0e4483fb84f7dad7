//! A model as a tree of modules, the way PyTorch prints one. Names are those of the tensors; modules without parameters
//! (dropout, positions, activation) are shown where they act.

use crate::model::{Activation, ModelConfig, NormPlacement, PaddingMask, PositionKind, Tie, Vocabulary, layout};

/// A module: its name, and what it is. If it has inner modules, its closing bracket follows them.
struct Module {
    name: String,
    what: String,
    inside: Vec<Module>,
}

/// The two stacks.
#[derive(Clone, Copy, PartialEq)]
enum Stack {
    Encoder,
    Decoder,
}

/// The tree, line by line.
pub(super) fn lines(config: &ModelConfig, vocabulary: Vocabulary) -> Vec<String> {
    let mut lines = vec!["Transformer(".to_owned()];
    for module in model(config, vocabulary) {
        module.write(1, &mut lines);
    }
    lines.push(")".to_owned());
    lines
}

impl Module {
    fn new(name: &str, what: impl Into<String>) -> Self {
        Self { name: name.to_owned(), what: what.into(), inside: Vec::new() }
    }

    /// `what` opens a bracket.
    fn around(name: &str, what: impl Into<String>, inside: Vec<Module>) -> Self {
        Self { name: name.to_owned(), what: what.into(), inside }
    }

    fn write(&self, depth: usize, lines: &mut Vec<String>) {
        let indent = "  ".repeat(depth);
        lines.push(format!("{indent}({}): {}", self.name, self.what));
        for module in &self.inside {
            module.write(depth + 1, lines);
        }
        if !self.inside.is_empty() {
            lines.push(format!("{indent})"));
        }
    }
}

fn model(c: &ModelConfig, vocabulary: Vocabulary) -> Vec<Module> {
    let scaled = if c.scale_embedding { format!(", times sqrt({})", c.d_model) } else { String::new() };
    let embedding = |name: &str, pieces: usize| {
        Module::new(name, format!("Embedding({pieces}, {}){scaled}{}", c.d_model, tied(name, c.tie)))
    };
    let mut output = linear("output_projection", c.d_model, vocabulary.target, c.output_bias);
    if !c.output_padding {
        output.what.push_str(", padding left out of the softmax");
    }
    vec![
        embedding("source_embedding", vocabulary.source),
        embedding("target_embedding", vocabulary.target),
        stack(c, Stack::Encoder),
        stack(c, Stack::Decoder),
        Module { what: output.what + &tied("output_projection", c.tie), ..output },
    ]
}

/// A remark if module `name` uses the matrix of another module.
fn tied(name: &str, tie: Tie) -> String {
    let owner = layout::ties(tie).into_iter().find(|(module, _)| *module == name);
    owner.map(|(_, owner)| format!(", tied to {owner}")).unwrap_or_default()
}

fn stack(c: &ModelConfig, stack: Stack) -> Module {
    let (name, kind, layers) = match stack {
        Stack::Encoder => ("encoder", "Encoder", c.encoder_layers),
        Stack::Decoder => ("decoder", "Decoder", c.decoder_layers),
    };
    let mut inside = Vec::new();
    match c.positions {
        PositionKind::Sinusoidal => {
            let what = format!("PositionalEncoding(sinusoidal, {}, {} x {})", c.sinusoid, c.max_length, c.d_model);
            inside.push(Module::new("positions", what));
        }
        PositionKind::Learned => {
            inside.push(Module::new("positions", format!("Embedding({}, {}), learned", c.max_length, c.d_model)));
        }
        // Applied in each self-attention.
        PositionKind::Rotary => {}
        PositionKind::Relative => {
            let (buckets, far) = (c.relative_buckets, c.relative_distance);
            let what = format!("Embedding({buckets}, {}), relative, alike from {far} on", c.heads);
            inside.push(Module::new("relative_positions", what));
        }
    }
    if c.embedding_norm {
        inside.push(norm("embedding_norm", c));
    }
    inside.extend(dropout("embedding_dropout", c.embedding_dropout));
    inside.push(Module::around("layers", format!("{layers} x {kind}Layer("), layer(c, stack)));
    if c.final_norm {
        inside.push(norm("norm", c));
    }
    Module::around(name, format!("{kind}("), inside)
}

fn layer(c: &ModelConfig, stack: Stack) -> Vec<Module> {
    let mut inside = sublayer(c, attention(c, "self_attn", stack == Stack::Decoder));
    if stack == Stack::Decoder {
        inside.extend(sublayer(c, attention(c, "cross_attn", false)));
    }
    inside.extend(sublayer(c, feed_forward(c)));
    inside
}

/// A sub-layer with its dropout and its norm, in the order in which they act.
fn sublayer(c: &ModelConfig, module: Module) -> Vec<Module> {
    let norm = norm(&format!("{}_norm", module.name), c);
    let dropout = dropout(&format!("{}_dropout", module.name), c.dropout);
    let mut inside: Vec<_> = std::iter::once(module).chain(dropout).collect();
    let at = if c.norm == NormPlacement::Pre { 0 } else { inside.len() };
    inside.insert(at, norm);
    inside
}

fn attention(c: &ModelConfig, name: &str, causal: bool) -> Module {
    let mut what = format!("MultiHeadAttention({} heads, d_k {}, d_v {}", c.heads, c.d_k, c.d_v);
    if causal {
        what.push_str(", causal");
    }
    if c.padding_mask == PaddingMask::KeysAndQueries {
        what.push_str(", padded queries masked");
    }
    let projection = |name: &str, width| linear(name, c.d_model, width, c.attention_bias);
    let mut inside = vec![
        projection("q_proj", c.key_width()),
        projection("k_proj", c.key_width()),
        projection("v_proj", c.value_width()),
    ];
    if c.positions == PositionKind::Rotary && name == "self_attn" {
        inside.push(Module::new("positions", format!("Rotary({}, {} x {})", c.sinusoid, c.max_length, c.d_k)));
    }
    inside.extend(dropout("dropout", c.attention_dropout));
    inside.push(linear("out_proj", c.value_width(), c.d_model, c.attention_bias));
    Module::around(name, what, inside)
}

fn feed_forward(c: &ModelConfig) -> Module {
    let activation = match c.activation {
        Activation::Relu => "ReLU()",
        Activation::Gelu => "GELU()",
        Activation::Swish => "Swish()",
        Activation::GeluTanh => "GELU(approximate='tanh')",
    };
    let has_bias = c.feed_forward_bias;
    let mut inside = vec![linear("fc1", c.d_model, c.d_ff, has_bias), Module::new("activation", activation)];
    if c.gated {
        let mut gate = linear("fc3", c.d_model, c.d_ff, has_bias);
        gate.what.push_str(", multiplied by what is activated");
        inside.push(gate);
    }
    inside.extend(dropout("dropout", c.activation_dropout));
    inside.push(linear("fc2", c.d_ff, c.d_model, has_bias));
    Module::around("feed_forward", "FeedForward(", inside)
}

fn linear(name: &str, input: usize, output: usize, bias: bool) -> Module {
    let bias = if bias { "True" } else { "False" };
    Module::new(name, format!("Linear(in_features={input}, out_features={output}, bias={bias})"))
}

fn norm(name: &str, c: &ModelConfig) -> Module {
    Module::new(name, format!("{}(({},), eps={})", c.norm_kind.module(), c.d_model, python_float(c.norm_eps)))
}

/// A dropout; `None` if its probability is 0.
fn dropout(name: &str, p: f64) -> Option<Module> {
    (p > 0.0).then(|| Module::new(name, format!("Dropout(p={p})")))
}

/// A small number as Python writes it: 1e-05.
fn python_float(number: f64) -> String {
    if number >= 1e-4 {
        return number.to_string();
    }
    let text = format!("{number:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NormKind, Preset};

    /// Names and shapes of the tensors that a tree's lines speak of.
    fn tensors(lines: &[String]) -> Vec<(String, Vec<usize>)> {
        let mut found = Vec::new();
        // Names of the modules around a line, and how often each is repeated.
        let mut around: Vec<(&str, Option<usize>)> = Vec::new();
        for line in &lines[1..lines.len() - 1] {
            let Some((name, what)) = line.trim().strip_prefix('(').and_then(|line| line.split_once("): ")) else {
                assert_eq!(line.trim(), ")");
                around.pop();
                continue;
            };
            let numbers: Vec<usize> =
                what.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
            let shapes = match what.split('(').next() {
                Some("Linear") => vec![("weight", vec![numbers[1], numbers[0]]), ("bias", vec![numbers[1]])],
                Some("Embedding") => vec![("weight", numbers[..2].to_vec())],
                Some("LayerNorm" | "StdNorm") => vec![("weight", vec![numbers[0]]), ("bias", vec![numbers[0]])],
                _ => Vec::new(),
            };
            for (tensor, shape) in shapes {
                if what.contains("tied to") && tensor == "weight" || what.contains("bias=False") && tensor == "bias" {
                    continue;
                }
                let mut paths = vec![String::new()];
                for (module, times) in &around {
                    let repeats: Vec<String> = match times {
                        Some(times) => (0..*times).map(|i| format!("{module}.{i}.")).collect(),
                        None => vec![format!("{module}.")],
                    };
                    paths = paths.iter().flat_map(|path| repeats.iter().map(move |r| format!("{path}{r}"))).collect();
                }
                found.extend(paths.iter().map(|path| (format!("{path}{name}.{tensor}"), shape.clone())));
            }
            if what.matches('(').count() > what.matches(')').count() {
                around.push((name, what.split_once(" x ").and_then(|(times, _)| times.parse().ok())));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn the_tree_has_the_tensors_of_the_layout() {
        let base = ModelConfig { d_k: 24, d_v: 48, decoder_layers: 3, ..ModelConfig::from_preset(Preset::Tiny) };
        let odd = ModelConfig {
            norm: NormPlacement::Pre,
            final_norm: true,
            norm_kind: NormKind::Std,
            norm_eps: 1e-9,
            positions: PositionKind::Learned,
            attention_bias: false,
            output_bias: true,
            attention_dropout: 0.1,
            ..base.clone()
        };
        let rotary = ModelConfig { positions: PositionKind::Rotary, activation: Activation::Gelu, ..base.clone() };
        for config in [base, odd, rotary] {
            for tie in [Tie::None, Tie::Decoder, Tie::All] {
                let source = if tie == Tie::All { 70 } else { 50 };
                let vocabulary = Vocabulary { source, target: 70, source_padding: 0, target_padding: 0 };
                let config = ModelConfig { tie, ..config.clone() };
                let layout = layout::layout(&config, vocabulary);
                let mut expected: Vec<_> = layout.entries().iter().map(|e| (e.name.clone(), e.shape.clone())).collect();
                expected.sort();
                let lines = lines(&config, vocabulary);
                assert_eq!(tensors(&lines), expected, "{}", lines.join("\n"));
            }
        }
    }

    #[test]
    fn small_numbers_are_written_as_in_python() {
        for (number, text) in [(1e-5, "1e-05"), (1e-12, "1e-12"), (2.5e-6, "2.5e-06"), (1e-3, "0.001")] {
            assert_eq!(python_float(number), text);
        }
    }
}
