//! What a run shows of itself: its log in forms that people look at.
//!
//! | Form | Module |
//! |---|---|
//! | a page, `report.html` | [`page`] |
//! | TensorBoard event files | [`events`] |

pub mod events;
pub mod page;
