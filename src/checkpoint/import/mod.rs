//! Weights of other programs, read into a model of ours. One file for each kind of source.
//!
//! Only safetensors are read. A source is described as a layout of *its* names over *our* flat buffer, so that
//! [`super::load_into`] does the reading, with its checks: every tensor of the file must have its place, and every place its
//! tensor, of the right shape.

pub mod marian;
pub mod torch;
