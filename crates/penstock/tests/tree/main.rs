//! The source tree itself: claims of documents, imports, sizes.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod architecture;
mod dependencies;
mod documents;
mod imports;
mod recipes;
