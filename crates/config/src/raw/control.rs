//! Tables of `[control]` for log-ins over the network, as the file has them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::PathText;
use crate::de::{At, Key};

/// `kerberos`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawKerberos {
    /// File with the keys of the service, which the user of the process must be able to read.
    #[schemars(extend("x-default" = "that of the system, `/etc/krb5.keytab`", "examples" = ["/etc/penstock/krb5.keytab"]))]
    pub(crate) keytab: Key<PathText>,
    /// First part of the name of the service: its principal is `SERVICE/HOST@REALM`.
    #[schemars(extend("default" = "host"))]
    pub(crate) service: Key<String>,
    /// Second part of that name: the host as clients call it.
    #[schemars(extend("x-default" = "the name of this machine", "examples" = ["gw1.example.org"]))]
    pub(crate) host: Key<String>,
}

/// `access` of `[admin]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAdminAccess {
    /// Role that a client needs for `/metrics`; with `open` it need not log in.
    #[schemars(extend("default" = "open", "enum" = ["open", "view", "operate", "admin"]))]
    pub(crate) metrics: Key<String>,
    /// Role that a client needs for `/status` and `/status.html`; with `open` it need not log in.
    #[schemars(extend("default" = "open", "enum" = ["open", "view", "operate", "admin"]))]
    pub(crate) status: Key<String>,
}

/// `roles`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRoles {
    /// Who may read only, as `readers` of the socket: `"user:NAME"` and `"group:NAME"` of the file `users`,
    /// `"principal:NAME@REALM"` of Kerberos, `"certificate:NAME"` (the common name of a client certificate).
    #[schemars(extend("default" = json!([]), "examples" = [["group:monitors"]]))]
    pub(crate) view: Key<Vec<At<String>>>,
    /// Who may also drain backends, change weights, end sessions, and change the level of the process log.
    #[schemars(extend("default" = json!([]), "examples" = [["user:ann"]]))]
    pub(crate) operate: Key<Vec<At<String>>>,
    /// Who may do everything: read and change the configuration, capture packets, reload, stop.
    #[schemars(extend("default" = json!([]), "examples" = [["principal:root/admin@EXAMPLE.ORG"]]))]
    pub(crate) admin: Key<Vec<At<String>>>,
}
