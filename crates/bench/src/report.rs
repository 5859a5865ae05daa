//! Results, told: in the terminal, as Markdown, as a page. The JSON file is `results.rs`.

pub mod terminal;
