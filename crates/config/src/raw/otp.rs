//! `[otp]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{DurationText, NetworkText, PathText};
use crate::de::{At, Key};
use crate::types::LogIn;

/// `[otp]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawOtp {
    /// Directory of the store. `penstock otp init` makes it; only the user of the process may write to it.
    #[schemars(extend("default" = "/var/lib/penstock/otp"))]
    pub(crate) store: Key<PathText>,
    /// File with the key that seals the secrets in the store. Only the user of the process may read it.
    #[schemars(extend("default" = "/etc/penstock/otp.key"))]
    pub(crate) key_file: Key<PathText>,
    /// HTTP listeners that answer requests for `/wsapi/2.0/verify`, the validation protocol 2.0 of Yubico, themselves: for
    /// pam_yubico, ykclient and others. Access lists, `request-rate` and `redirect-to-https` of the listener come first.
    /// `penstock otp client add` makes the numbers and keys of clients.
    #[schemars(extend("default" = json!([]), "examples" = [["web"]]))]
    pub(crate) listeners: Key<Vec<At<String>>>,
    /// Unix socket on which PAM modules (`pam_penstock.so`) ask. Root and the user of the process may ask about every user,
    /// others about themselves. Without this key there is none.
    #[schemars(extend("examples" = ["/run/penstock/auth.sock"]))]
    pub(crate) socket: Key<PathText>,
    /// File of users whose passwords PAM modules may ask about, as `users` of `[control]`: `penstock user add` writes it. Others
    /// than its owner must not read it (mode 0600), and the user of the process must. A user whom it calls revoked is let in by no
    /// factor, and the OTPs of their tokens are good for no API client; while it cannot be read, no user is let in.
    #[schemars(extend("x-default" = "none: no password is good", "examples" = ["/etc/penstock/users"]))]
    pub(crate) users: Key<PathText>,
    /// What a log-in through PAM must prove at least: a one-time password (`"otp"`), a password (`"password"`), one of them
    /// (`"either"`), or both (`"both"`). A module that asks for less lets no user in.
    #[schemars(extend("x-default" = "what `auth=` of the module says", "enum" = LogIn::WORDS))]
    pub(crate) log_in: Key<String>,
    /// Other validation servers with the same tokens, each as `"10.0.0.2:8080"`: an HTTP listener without TLS that is named in
    /// `listeners` there, on a network that no other machine can change. Each server tells the others which OTP it accepted
    /// (`/wsapi/2.0/sync`, as YK-VAL has it), so that an OTP is good once, whichever of them is asked.
    #[schemars(extend("default" = json!([]), "examples" = [["10.0.0.2:8080", "10.0.0.3:8080"]]))]
    pub(crate) peers: Key<Vec<At<String>>>,
    /// Networks from which other servers may tell what they accepted; without it the addresses of `peers`.
    #[schemars(extend("default" = json!([])))]
    pub(crate) sync_from: Key<Vec<At<NetworkText>>>,
    /// Part of the peers, in percent, that must say that an OTP is news before it is good; a client may ask for another part
    /// (`sl`). With 100 no OTP is good while a peer is away. With less, one that comes back may accept an OTP that the
    /// others have accepted a moment before.
    #[schemars(extend("default" = 100, "minimum" = 0, "maximum" = 100))]
    pub(crate) sync_level: Key<i64>,
    /// Time for the peers to answer, unless the client says another one (`timeout`).
    #[schemars(extend("default" = "1s"))]
    pub(crate) sync_timeout: Key<DurationText>,
}
