//! What a run shows of itself: its log in forms that people look at.
//!
//! | Form | Module |
//! |---|---|
//! | TensorBoard event files | [`events`] |

pub mod events;
