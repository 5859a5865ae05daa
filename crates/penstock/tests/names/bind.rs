//! The same against BIND: a primary that checks prerequisites and signatures in its own way.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use testing::sshd::program;
use testing::{eventually, secs};

use crate::domain::Home;
use crate::push::{certificate, replace_large_records};

#[test]
fn bind_takes_our_updates_and_its_refusals_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    // BIND listens on the addresses of interfaces only.
    let (shown, address) = (path.display(), "127.0.0.1");
    let port = testing::port::free();
    let key = |name: &str, secret: &str| {
        format!("key \"{name}\" {{ algorithm hmac-sha256; secret \"{secret}\"; }};\n")
    };
    let (ours, other) =
        (key("penstock", "AAECAwQFBgcICQoLDA0ODw=="), key("reader", "EBESExQVFhcYGRobHB0eHw=="));
    for (name, text) in
        [("penstock", &ours), ("reader", &other), ("forged", &key("penstock", "ICEiIyQlJicoKSorLC0uLw=="))]
    {
        let file = path.join(format!("{name}.key"));
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let zone = format!(
        "$TTL 60\n@ SOA ns admin 1 60 60 60 60\n@ NS ns\nns A {address}\n_443._tcp.www TLSA 3 1 1 00\n"
    );
    fs::write(path.join("example.test.zone"), zone).unwrap();
    let config = format!(
        "{ours}{other}options {{ directory \"{shown}\"; listen-on port {port} {{ {address}; }}; listen-on-v6 {{ none; }}; recursion no;\n\
         pid-file none; session-keyfile none; allow-transfer {{ none; }}; }};\ncontrols {{}};\n\
         zone \"example.test\" {{ type primary; file \"example.test.zone\"; allow-update {{ key penstock; }}; }};\n"
    );
    fs::write(path.join("named.conf"), config).unwrap();
    let mut named = Command::new(program("named"));
    named.arg("-g").arg("-c").arg(path.join("named.conf"));
    let mut named = named.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let tlsa = || {
        let mut command = Command::new(program("kdig"));
        let (place, port) = (format!("@{address}"), port.to_string());
        command.args([
            &place,
            "-p",
            &port,
            "+short",
            "+time=1",
            "+retry=0",
            "_443._tcp.www.example.test.",
            "TLSA",
        ]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    eventually("the zone is served", secs(20), || tlsa().contains("3 1 1 00").then_some(()));
    let home = Home::new();
    let file = certificate(&home, "www", "www.example.test");
    let server = format!("{address}:{port}");
    let arguments = |name: &str| {
        let key = path.join(format!("{name}.key")).display().to_string();
        ["dns", "push", "--next", &file, "--server", &server, "--tsig", &key].map(str::to_owned)
    };
    let refused = home.refused(&arguments("reader"), 1);
    assert!(refused.contains("it refuses: allow this key to update"), "{refused}");
    let refused = home.refused(&arguments("forged"), 1);
    assert!(refused.contains("our signature is wrong for it"), "{refused}");
    let done = home.said(&arguments("penstock"));
    assert!(done.contains("- _443._tcp.www.example.test. 60 IN TLSA 3 1 1 00\n+ "), "{done}");
    assert_eq!(tlsa().lines().count(), 1);
    assert_eq!(home.said(&arguments("penstock")), "nothing to change: the zone has the 1 record\n");
    replace_large_records(SocketAddr::new(address.parse().unwrap(), port), &path.join("penstock.key"));
    let _ = named.kill();
    let _ = named.wait();
}
