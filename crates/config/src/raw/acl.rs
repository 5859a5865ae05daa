//! `[acl.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::PathText;
use super::forms::EntryText;
use crate::de::{At, Key};

/// `[acl.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAcl {
    /// Entries, each `permit` or `deny` with a network, an address, `unix` for clients of Unix sockets, or `country:DE` for
    /// those in a country by the database of `[geoip]`. The first one that matches a client decides.
    #[schemars(extend("default" = json!([]), "x-list-example" = "[\"permit 10.0.0.0/8\"]"))]
    pub(crate) entries: Key<Vec<At<EntryText>>>,
    /// File with more entries, which come after those of `entries`: one on each line, comments from `#` to the end of the
    /// line; up to 1,000,000 entries in 32 MiB. A reload reads it again, and is refused if a line is wrong.
    #[schemars(extend("x-default" = "none", "examples" = ["/etc/penstock/office.acl"]))]
    pub(crate) file: Key<PathText>,
    /// What happens with clients that no entry matches.
    #[schemars(extend("x-required" = true, "enum" = ["permit", "deny"], "examples" = ["deny"]))]
    pub(crate) default: Key<String>,
}
