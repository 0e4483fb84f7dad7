//! A SentencePiece model as its file has it: the fields of `sentencepiece_model.proto` that encoding and decoding need.

use prost::Message;

/// The whole file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer: Option<TrainerProto>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer: Option<NormalizerProto>,
    #[prost(message, optional, tag = "5")]
    pub(super) denormalizer: Option<NormalizerProto>,
}

/// A piece; its id is its index.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PieceProto {
    #[prost(string, tag = "1")]
    pub(super) piece: String,
    #[prost(float, tag = "2")]
    pub(super) score: f32,
    #[prost(enumeration = "PieceKind", optional, tag = "3")]
    pub(super) kind: Option<i32>,
}

/// What a piece stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum PieceKind {
    /// Its own text.
    Normal = 1,
    /// Text without a piece.
    Unknown = 2,
    /// Nothing in text: `<s>` and the like.
    Control = 3,
    /// Its own text, which is never split nor normalised.
    UserDefined = 4,
    /// Its own text: merges may pass through it, but it is never output.
    Unused = 5,
    /// One byte of UTF-8.
    Byte = 6,
}

/// How it was trained.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrainerProto {
    #[prost(enumeration = "ModelKind", optional, tag = "3")]
    pub(super) model_kind: Option<i32>,
    #[prost(bool, tag = "24")]
    pub(super) treat_whitespace_as_suffix: bool,
    #[prost(bool, tag = "35")]
    pub(super) byte_fallback: bool,
    #[prost(string, optional, tag = "44")]
    pub(super) unk_surface: Option<String>,
    #[prost(string, optional, tag = "46")]
    pub(super) bos_piece: Option<String>,
    #[prost(string, optional, tag = "47")]
    pub(super) eos_piece: Option<String>,
    #[prost(string, optional, tag = "48")]
    pub(super) pad_piece: Option<String>,
}

/// How text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ModelKind {
    /// The likeliest segmentation (Kudo 2018).
    Unigram = 1,
    /// Byte-pair encoding (Sennrich et al. 2016).
    Bpe = 2,
    /// One piece per word.
    Word = 3,
    /// One piece per character.
    Char = 4,
}

/// How text is normalised.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NormalizerProto {
    #[prost(bytes = "vec", tag = "2")]
    pub(super) precompiled_charsmap: Vec<u8>,
    #[prost(bool, optional, tag = "3")]
    pub(super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(super) escape_whitespaces: Option<bool>,
}
