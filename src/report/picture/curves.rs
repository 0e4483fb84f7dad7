//! The curves of runs as a picture.
