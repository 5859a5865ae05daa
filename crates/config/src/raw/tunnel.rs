//! `[tunnel.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{BackendText, BindText, DurationText, Key, PathText};
use crate::de::{At, Named};

/// `[tunnel.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawTunnel {
    /// The SSH host, by the name that is its identity: as `penstock host` and `~/.ssh/config` know it.
    #[schemars(extend("x-required" = true, "examples" = ["nas"]))]
    pub(crate) host: Key<String>,
    /// What is forwarded, one table for each. NAME is up to 64 of `A-Z a-z 0-9 _ -`. Commands get its address as
    /// `{NAME}`, `{NAME.host}` and `{NAME.port}`, and as the variables `TUNNEL_NAME`, `TUNNEL_NAME_HOST` and
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
    /// A connection on which nothing came for so long is asked whether it lives.
    #[schemars(extend("default" = "15s"))]
    pub(crate) keep_alive: Key<DurationText>,
    /// Questions in a row without an answer after which it is given up and opened anew.
    #[schemars(extend("default" = 3, "minimum" = 1, "maximum" = 100))]
    pub(crate) keep_alive_count: Key<i64>,
    /// Longest time until the connection stands, logged in.
    #[schemars(extend("default" = "20s"))]
    pub(crate) connect_timeout: Key<DurationText>,
    /// How often the services are asked again while the tunnel is up.
    #[schemars(extend("default" = "30s"))]
    pub(crate) check_interval: Key<DurationText>,
    /// Existing, empty directory on which `mount` mounts. `chattr +i` on it keeps anybody from writing there while
    /// nothing is mounted.
    #[schemars(extend("x-default" = "none; needed with `mount`", "examples" = ["/mnt/nas"]))]
    pub(crate) mount_point: Key<PathText>,
    /// Command that mounts once every service answers: a list of words, no shell. `{mount-point}` is the directory.
    #[schemars(extend("x-default" = "none: nothing is mounted"))]
    pub(crate) mount: Key<Vec<At<String>>>,
    /// Command that unmounts. It is tried again while the directory is in use.
    #[schemars(extend("default" = json!(["umount", "{mount-point}"])))]
    pub(crate) unmount: Key<Vec<At<String>>>,
    /// Command that takes the mount away although it is in use, when `unmount` has failed five times.
    #[schemars(extend("default" = json!(["umount", "-l", "{mount-point}"])))]
    pub(crate) unmount_lazy: Key<Vec<At<String>>>,
    /// Longest time for each of these commands.
    #[schemars(extend("default" = "60s"))]
    pub(crate) mount_timeout: Key<DurationText>,
    /// Command that `penstock tunnel with NAME` runs when it is given none. `{NAME}` and the like are replaced in it, as in the
    /// command that is given there. It is a program of its own, so other braces stay; `{{NAME}}` is `{NAME}`.
    #[schemars(extend("x-default" = "none"))]
    pub(crate) job: Key<Vec<At<String>>>,
}

/// `[tunnel.NAME.forward.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawForward {
    /// `"local"`: we listen here and the host connects. `"remote"`: the host listens and we connect. `"dynamic"`: we are
    /// a SOCKS5 proxy here (CONNECT, no authentication), and the host connects to where programs ask.
    #[schemars(extend("default" = "local", "enum" = ["local", "remote", "dynamic"]))]
    pub(crate) kind: Key<String>,
    /// Where to listen: an address with a port (0: any that is free), or `"unix:/path"`, a socket for its owner only. Of
    /// tunnels that listen at the same place one can be up at a time.
    #[schemars(extend("default" = "127.0.0.1:0", "x-instead" = json!({ "integer": "write \"127.0.0.1:{}\"" })))]
    pub(crate) listen: Key<BindText>,
    /// Where to connect: `"host:port"` or `"unix:/path"`. With `local` the host connects, and looks up the name.
    #[schemars(extend(
        "x-default" = "none; needed but with `dynamic`", "examples" = ["127.0.0.1:2049"],
        "x-only" = json!({ "kind": ["local", "remote"] })
    ))]
    pub(crate) connect: Key<BackendText>,
    /// How the service at the end is asked whether it works, before anything uses it and again and again: `"tcp"` (it
    /// accepts a connection and keeps it), `"banner"` (it speaks first), `"http"` (status from 200 to 399), `"nfs-null"` (the
    /// null procedure of NFS), `"none"`.
    #[schemars(extend(
        "default" = "tcp", "enum" = ["tcp", "banner", "http", "nfs-null", "none"],
        "x-instead" = json!({ "object": "write check = \"http\", and the path by itself: check-path = \"/\"" }),
        "x-only" = json!({ "kind": ["local", "remote"] })
    ))]
    pub(crate) check: Key<String>,
    /// Path of the question.
    #[schemars(extend("default" = "/", "x-only" = json!({ "check": ["http"] })))]
    pub(crate) check_path: Key<String>,
}
