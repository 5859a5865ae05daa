//! `route` of a listener as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{OneOrMany, RawRouteBandwidth, Scalar, forms};
use crate::de::{At, Key, Named};

/// `request-headers` and `response-headers`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawEdits {
    /// Header fields and their values; each replaces existing fields with that name.
    #[schemars(extend("default" = json!({})))]
    pub(crate) set: Key<Named<String>>,
    /// Header fields to remove.
    #[schemars(extend("default" = json!([])))]
    pub(crate) remove: Key<Vec<At<String>>>,
}

/// `respond` of a route
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRespond {
    /// Status of the response: a registered one that needs no field of its own. For a redirect there is `redirect`.
    #[schemars(extend("default" = 200, "minimum" = 200, "maximum" = 599))]
    pub(crate) status: Key<i64>,
    /// Body of the response, of at most 64 KiB.
    #[schemars(extend("default" = ""))]
    pub(crate) body: Key<String>,
    /// What the body is.
    #[schemars(extend("default" = "text/plain; charset=utf-8", "examples" = ["text/html; charset=utf-8"]))]
    pub(crate) content_type: Key<String>,
}

/// `[[listener.NAME.route]]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRoute {
    /// Host of the request: a name, `"*.example.com"` for every name below one, or `"*"`.
    #[schemars(extend("default" = "*"))]
    pub(crate) host: Key<OneOrMany<String>>,
    /// Start of the path, in whole segments: `"/api"` matches `/api` and `/api/x`, not `/apix`; `"/api/"` only paths
    /// below it. There are no wildcards. `;` has no meaning: `/admin;x` is not below `/admin`. A backend that removes such
    /// parameters (Tomcat, Jetty) serves it as `/admin`: before one, list what is public, not what is forbidden.
    #[schemars(extend("default" = "/"))]
    pub(crate) path: Key<OneOrMany<String>>,
    /// Methods, in capitals; without this key every method.
    pub(crate) method: Key<OneOrMany<String>>,
    /// Header fields that must have this value, or, with `true`, that must be present.
    #[schemars(schema_with = "forms::header_conditions")]
    #[schemars(extend("default" = json!({})))]
    pub(crate) header: Key<Named<Scalar>>,
    /// NAME of the section `[acl.NAME]` that says whose matching requests are served; others get 403 (with
    /// `tls-passthrough` an alert). Behind one of `trusted-proxies` the client is the last address in `X-Forwarded-For` that
    /// is none of them; a client whose address that header does not tell is denied.
    #[schemars(extend("x-default" = "every client"))]
    pub(crate) acl: Key<String>,
    /// Pool for matching requests.
    pub(crate) pool: Key<String>,
    /// Answer matching requests with a redirect to this URL, in which `{host}`, `{path}` and `{query}` (with its `?`)
    /// are replaced by those of the request.
    pub(crate) redirect: Key<String>,
    /// Status of the redirect: 301, 302, 303, 307 or 308.
    #[schemars(extend("x-default" = "`308` with `redirect`"))]
    pub(crate) status: Key<i64>,
    /// Answer matching requests without a backend. `response-headers` applies.
    #[schemars(extend("x-example" = r#"[listener.web]
bind = ":80"
pool = "app"

[[listener.web.route]]
path = "/robots.txt"
respond = { body = "User-agent: *\nDisallow: /\n" }
"#))]
    pub(crate) respond: Key<RawRespond>,
    /// Changes of matching requests, after those of the listener.
    pub(crate) request_headers: Key<RawEdits>,
    /// Changes of the responses, after those of the listener.
    pub(crate) response_headers: Key<RawEdits>,
    /// Bytes a second of each matching request and its response, instead of `bandwidth` of the listener. Not with
    /// `tls-passthrough`.
    #[schemars(extend("x-example" = r#"[listener.web]
bind = ":80"
pool = "app"

[[listener.web.route]]
path = "/downloads/"
pool = "app"
bandwidth = { down = "512KiB/s", burst = "2MiB" }
"#))]
    pub(crate) bandwidth: Key<RawRouteBandwidth>,
}
