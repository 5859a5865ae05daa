//! `[otp]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::PathText;
use crate::de::{At, Key};

/// `[otp]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawOtp {
    /// Directory of the store. `penstock otp init` makes it; only the user of the process may write to it.
    #[schemars(extend("default" = "/var/lib/penstock/otp"))]
    pub(crate) store: Key<PathText>,
    /// File with the key that seals the secrets in the store. Nobody but the user of the process may read it.
    #[schemars(extend("default" = "/etc/penstock/otp.key"))]
    pub(crate) key_file: Key<PathText>,
    /// HTTP listeners that answer requests for `/wsapi/2.0/verify`, the validation protocol 2.0 of Yubico, themselves: for
    /// pam_yubico, ykclient and others. Access lists, `request-rate` and `redirect-to-https` of the listener come first.
    /// `penstock otp client add` makes the numbers and keys of clients.
    #[schemars(extend("default" = json!([]), "examples" = [["web"]]))]
    pub(crate) listeners: Key<Vec<At<String>>>,
}
