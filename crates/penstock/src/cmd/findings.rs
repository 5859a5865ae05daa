//! Shows what checks have found.

use std::fmt::Write as _;

use logic::finding::Finding;
use serde_json::{Value, json};

/// A line for each, with the commands that mend a fault below it.
pub(crate) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "{:<8} {}", finding.state, finding.text);
        for command in &finding.mend {
            let _ = writeln!(text, "{:<8}   {command}", "");
        }
    }
    text
}

pub(crate) fn json(findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        json!({
            "check": finding.check,
            "state": finding.state.as_str(),
            "text": finding.text,
            "mend": finding.mend,
        })
    };
    findings.iter().map(one).collect()
}
