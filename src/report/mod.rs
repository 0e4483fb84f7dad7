//! Reports on runs: their logs in forms that people look at.
//!
//! | Form | Module |
//! |---|---|
//! | a page, `report.html` | [`page`] |
//! | translations explained | [`attention`] |
//! | TensorBoard event files | [`events`] |
//! | SVG and PNG | [`picture`] |

pub mod attention;
pub mod events;
pub mod files;
pub mod page;
pub mod picture;
mod records;
