//! `[tunnel.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{BackendText, BindText, DurationText, PathText};
use crate::de::{At, Key, Named};

/// `[tunnel.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawTunnel {
    /// The SSH host, by the name that is its identity: as `penstock host` and `~/.ssh/config` know it.
    #[schemars(extend("x-required" = true, "examples" = ["nas"]))]
    pub(crate) host: Key<String>,
    /// Forwards of the tunnel, one table each. NAME is up to 64 of `A-Z a-z 0-9 _ -`. Commands get the forward's
    /// address as `{NAME}`, `{NAME.host}` and `{NAME.port}`, and in the variables `TUNNEL_NAME`, `TUNNEL_NAME_HOST` and
    /// `TUNNEL_NAME_PORT`.
    #[schemars(extend("x-required" = true, "x-example" = r#"[tunnel.office]
host = "bastion"

[tunnel.office.forward.database]
listen = "unix:/run/user/1000/database.sock"
connect = "db.internal:5432"
check = "tcp"

[tunnel.office.forward.reports]
kind = "remote"
listen = "127.0.0.1:8025"
connect = "127.0.0.1:25"
check = "banner"

[tunnel.office.forward.browser]
kind = "dynamic"
listen = "127.0.0.1:1080"
"#))]
    pub(crate) forward: Key<Named<RawForward>>,
    /// Idle time of the connection after which a keep-alive request is sent.
    #[schemars(extend("default" = "15s"))]
    pub(crate) keep_alive: Key<DurationText>,
    /// Number of consecutive unanswered keep-alive requests after which the connection is opened again.
    #[schemars(extend("default" = 3, "minimum" = 1, "maximum" = 100))]
    pub(crate) keep_alive_count: Key<i64>,
    /// Time limit of opening the connection, including the log-in.
    #[schemars(extend("default" = "20s"))]
    pub(crate) connect_timeout: Key<DurationText>,
    /// Interval of the checks of the services while the tunnel is up.
    #[schemars(extend("default" = "30s"))]
    pub(crate) check_interval: Key<DurationText>,
    /// Existing, empty directory for `mount`. `chattr +i` on it keeps programs from writing there while nothing is
    /// mounted.
    #[schemars(extend("x-default" = "none; needed with `mount`", "examples" = ["/mnt/nas"]))]
    pub(crate) mount_point: Key<PathText>,
    /// Command that mounts once every service answers: a list of words, no shell. `{mount-point}` is the directory.
    #[schemars(extend("x-default" = "none: nothing is mounted"))]
    pub(crate) mount: Key<Vec<At<String>>>,
    /// Command that unmounts. It is retried while the directory is in use.
    #[schemars(extend("default" = json!(["umount", "{mount-point}"])))]
    pub(crate) unmount: Key<Vec<At<String>>>,
    /// Command that removes a mount that is still in use, after `unmount` has failed five times.
    #[schemars(extend("default" = json!(["umount", "-l", "{mount-point}"])))]
    pub(crate) unmount_lazy: Key<Vec<At<String>>>,
    /// Time limit of each of these commands.
    #[schemars(extend("default" = "60s"))]
    pub(crate) mount_timeout: Key<DurationText>,
    /// Command that `penstock tunnel with NAME` runs if its command line has none. `{NAME}` and the like are replaced
    /// in it, as in a command on the command line. Other braces stay unchanged; `{{NAME}}` is `{NAME}`.
    #[schemars(extend("x-default" = "none"))]
    pub(crate) job: Key<Vec<At<String>>>,
}

/// `[tunnel.NAME.forward.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawForward {
    /// `"local"`: this machine listens and the host connects. `"remote"`: the host listens and this machine connects.
    /// `"dynamic"`: this machine is a SOCKS5 proxy (CONNECT, no authentication), and the host connects to requested
    /// addresses.
    #[schemars(extend("default" = "local", "enum" = ["local", "remote", "dynamic"]))]
    pub(crate) kind: Key<String>,
    /// Listening address: an address with a port (0: any free port), or `"unix:/path"`, a socket for its owner only. Of
    /// tunnels with the same listening address only one can be up at a time.
    #[schemars(extend("default" = "127.0.0.1:0", "x-instead" = json!({ "integer": "write \"127.0.0.1:{}\"" })))]
    pub(crate) listen: Key<BindText>,
    /// Destination: `"host:port"` or `"unix:/path"`. With `local` the host connects, and resolves the name.
    #[schemars(extend(
        "x-default" = "none; needed but with `dynamic`", "examples" = ["127.0.0.1:2049"],
        "x-only" = json!({ "kind": ["local", "remote"] })
    ))]
    pub(crate) connect: Key<BackendText>,
    /// Check of the service behind the forward, before its first use and repeatedly after it: `"tcp"` (the service
    /// accepts a connection and keeps it open), `"banner"` (it sends the first byte), `"http"` (status from 200 to
    /// 399), `"nfs-null"` (the null procedure of NFS), `"none"`.
    #[schemars(extend(
        "default" = "tcp", "enum" = ["tcp", "banner", "http", "nfs-null", "none"],
        "x-instead" = json!({ "object": "write check = \"http\", and the path by itself: check-path = \"/\"" }),
        "x-only" = json!({ "kind": ["local", "remote"] })
    ))]
    pub(crate) check: Key<String>,
    /// Path of the HTTP request.
    #[schemars(extend("default" = "/", "x-only" = json!({ "check": ["http"] })))]
    pub(crate) check_path: Key<String>,
}
