//! Links and headings of Markdown.

use std::collections::BTreeSet;

/// Lines of prose: without fenced blocks and code spans.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push(line.split('`').step_by(2).collect());
        }
    }
    lines
}

/// Where the links of a document lead.
pub(super) fn links(text: &str) -> Vec<String> {
    let lines = prose(text);
    let ends = lines.iter().flat_map(|line| line.split("](").skip(1));
    ends.filter_map(|rest| rest.split(')').next().map(str::to_owned)).collect()
}

/// The anchors of its headings, as GitHub and mdBook make them.
pub(super) fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}
