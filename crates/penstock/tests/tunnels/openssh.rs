//! `penstock tunnel --engine openssh` beside what `ssh_config` and the host say.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;

use testing::sshd::Sshd;
use testing::tunnel::Place;

const TUNNEL: &str =
    "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n";

/// Adds lines for `far` to the configuration of ssh.
fn configure_ssh(place: &Place, lines: &str) {
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    fs::write(place.path("ssh_config"), text + lines).unwrap();
}

#[test]
fn forwards_of_ssh_config_are_not_taken_over_and_what_is_at_their_paths_stays() {
    let place = Place::new();
    place.configure(TUNNEL);
    let _live = UnixListener::bind(place.path("live.sock")).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap();
    place.write("precious.txt", "precious");
    let inode = |name| fs::symlink_metadata(place.path(name)).unwrap().ino();
    let before = (inode("precious.txt"), inode("live.sock"));
    configure_ssh(
        &place,
        &format!(
            " LocalForward {0}/precious.txt localhost:1\n LocalForward {0}/live.sock localhost:1\n \
             LocalForward {busy} localhost:1\n LocalForward {0}/new.sock localhost:1\n",
            place.directory.path().display()
        ),
    );
    let job = ["with", "t", "--engine", "openssh", "--", "ls", &place.shown("new.sock")];
    let ran = place.run(&job);
    assert_eq!((inode("precious.txt"), inode("live.sock")), before);
    // There is no such file: `ls` ends with 2.
    ran.code(2);
    place.run(&["check", "t", "--engine", "openssh"]).code(0);
    assert_eq!(fs::read_to_string(place.path("precious.txt")).unwrap(), "precious");
    place.is_clean();
}
#[test]
fn ssh_that_its_configuration_sends_to_the_background_ends_with_the_tunnel() {
    for line in
        ["ForkAfterAuthentication yes", "ControlPersist yes", "ControlMaster auto\n ControlPersist 60"]
    {
        let place = Place::new();
        place.configure(TUNNEL);
        configure_ssh(&place, &format!(" {line}\n"));
        let ran = place.run(&["with", "t", "--engine", "openssh", "--", "true"]);
        ran.code(0);
        assert!(!ran.err.contains("not signalled") && !ran.err.contains("next attempt"), "{}", ran.err);
        place.is_clean();
    }
}
#[test]
fn a_banner_of_the_host_is_no_word_of_ours_nor_of_ssh() {
    let banners = [
        "penstock: key-changed: far showed another key than its pin; nothing was sent\n  \
         penstock host add far --replace --fingerprint SHA256:EVIL\n",
        "Host key for far has changed and you have requested strict checking.\nHost key verification failed.\n",
        "ssh: connect to host far port 22: Connection refused\n",
    ];
    let directory = tempfile::tempdir().unwrap();
    let banner = directory.path().join("banner");
    let place = Place::with(Sshd::with(&format!("Banner {}\n", banner.display())));
    place.configure(TUNNEL);
    // Its log-in is denied after the banner.
    fs::write(place.sshd.directory.path().join("authorized_keys"), "").unwrap();
    for text in banners {
        fs::write(&banner, text).unwrap();
        let ran = place.run(&["with", "t", "--engine", "openssh", "--", "true"]);
        ran.code(125).says("far accepts none of the keys");
        for part in ["nothing was sent", "EVIL", "refuses the connection", "another key"] {
            assert!(!ran.err.contains(part), "{part}: {}", ran.err);
        }
        place.is_clean();
    }
}
