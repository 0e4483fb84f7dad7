pub mod config;
pub mod decode;
pub mod error;
pub mod model;
pub mod ops;
pub mod rng;
