//! Expansion of `~`, tokens and variables in values.

use super::evaluate::{Evaluation, Found};
use super::setting::Value;
use super::tokens::{self, Tokens};

/// Expands `~`, tokens and variables in a path.
pub(super) fn path(text: &str, tokens: &Tokens, from: &Evaluation<'_>) -> Result<String, String> {
    let text = tokens::tilde(text, &from.local.home)?;
    // Values of variables are not searched for tokens, and values of tokens not for variables.
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("${") {
        let end = rest[at..].find('}').map_or(rest.len(), |end| at + end + 1);
        out.push_str(&tokens.expand(&rest[..at])?);
        out.push_str(&tokens::environment(&rest[at..end], &|name| from.machine.variable(name))?);
        rest = &rest[end..];
    }
    out.push_str(&tokens.expand(rest)?);
    Ok(out)
}

pub(super) fn texts(found: Option<&Vec<Found>>) -> Vec<String> {
    found.into_iter().flatten().map(|found| found.value.to_string()).collect()
}

/// Variables with values; of several with one name the first counts.
pub(super) fn variables(found: Option<&Found>) -> Vec<String> {
    let Some(Found { value: Value::Words(pairs), .. }) = found else { return Vec::new() };
    let name = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
    let mut out: Vec<String> = Vec::new();
    for pair in pairs {
        if !out.iter().any(|other| name(other) == name(pair)) {
            out.push(pair.clone());
        }
    }
    out
}
