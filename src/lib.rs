//! `mt`: train, evaluate and run Transformer machine-translation models.
//!
//! # Data flow
//!
//! ```text
//! text ── data::corpus ── data::tokenizer ── data::sampler ── data::batch ── data::prefetch
//!                                                                                │
//!                 ops (kernels, parameters) ── model (Transformer) ── train (the loop) ── checkpoint
//!                                                  │                        └── report (its log as pages and pictures)
//!       infer (on the processor), gpu (on NVIDIA's) ── decode (search, translate) ── metrics (BLEU, chrF, TER)
//! ```
//!
//! Text is files, or a data set of the Hugging Face hub: [`hub`] fetches, `data::hub` reads.
//!
//! # Modules
//!
//! Dependencies point one way: `main → commands → {interop, report} → {config, train, decode, metrics, checkpoint} →
//! {infer, gpu} → {model, data} → {ops, hub, device} → rng`. Beside this order, [`cli`], with which [`commands`] and `main`
//! read the command line, imports only names of keys, from [`config`], to explain a flag that is none; [`metrics`], [`hub`], [`device`] and [`rng`] import nothing of ours but
//! [`error`], [`console`], `file`, `foreign`, `limits`, `signature` and `choice`.
//!
//! The configuration is an exception to the order. The names that it may use for a thing (`choice`, which imports [`error`]
//! alone) stand in the module that implements the thing, and so do the keys of schedules and optimizers. All other keys
//! stand in `config/schema.rs`, in the terms of `key`, which imports nothing. So [`config`] and the modules whose sections it
//! composes ([`model`], [`train`], [`decode`], [`data`], [`metrics`] and others) refer to each other: [`config`] to their plain
//! types, and most of them to the plain structs that it makes of those sections. ([`gpu`] reads them through the model.)
//!
//! An [`explanation`] is plain data too, which [`decode`] makes, [`train`] passes on and [`report`] draws.

#[cfg(not(unix))]
compile_error!("mt needs Linux or another Unix system");

pub mod allocator;
pub mod checkpoint;
mod choice;
pub mod cli;
pub mod commands;
pub mod config;
pub mod console;
pub mod data;
pub mod decode;
pub mod device;
pub mod error;
pub mod explanation;
mod file;
mod foreign;
pub mod gpu;
pub mod hub;
pub mod infer;
pub mod interop;
mod key;
mod limits;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod report;
pub mod rng;
mod signature;
pub mod train;
