//! `user_authfile`: keys that a user has chosen in `~/.yubico/authorized_yubikeys`, read with the rights of that user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use testing::secs;
use testing::server::run_to_end;
use testing::tools::{Root, root};

use crate::pam::{Daemon, daemon, in_place_of_system_files, system_files};

/// Numbers of a user and of groups that only the files of these tests have.
const USER: u32 = 61_234;
const GROUP: u32 = 61_235;
const STAFF: u32 = 61_236;

struct Machine {
    daemon: Daemon,
    directory: tempfile::TempDir,
}

/// A machine with the user kate, who is in the group staff61 as well, and lukas, who is not.
fn machine() -> Machine {
    let daemon = daemon();
    daemon.tokens.yubikey("ccccccccccbb", None);
    let directory = system_files(&daemon, "penstock-test", "user_authfile");
    let home = |name: &str| directory.path().join(name);
    let system = directory.path().join("system");
    let passwd = format!(
        "root:x:0:0::/root:/bin/sh\nkate:x:{USER}:{GROUP}::{}:/bin/sh\nlukas:x:{}:{GROUP}::{}:/bin/sh\n",
        home("kate").display(),
        USER + 1,
        home("lukas").display()
    );
    fs::write(system.join("passwd"), passwd).unwrap();
    fs::write(system.join("group"), format!("root:x:0:\npeople61:x:{GROUP}:\nstaff61:x:{STAFF}:kate\n"))
        .unwrap();
    fs::write(system.join("nsswitch.conf"), "passwd: files\ngroup: files\n").unwrap();
    for (name, user) in [("kate", USER), ("lukas", USER + 1)] {
        fs::create_dir_all(home(name).join(".yubico")).unwrap();
        fs::write(home(name).join(".yubico/authorized_yubikeys"), format!("{name}:vvvv:ccccccccccbb\n"))
            .unwrap();
        for path in [home(name), home(name).join(".yubico"), home(name).join(".yubico/authorized_yubikeys")] {
            chown(&path, Some(user), Some(GROUP)).unwrap();
            let mode = if path.is_dir() { 0o700 } else { 0o600 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    Machine { daemon, directory }
}

impl Machine {
    fn file(&self, user: &str) -> std::path::PathBuf {
        self.directory.path().join(user).join(".yubico/authorized_yubikeys")
    }

    #[track_caller]
    fn expect(&self, user: &str, name: &str, press: u8, good: bool) {
        let otp = crate::token::YubiKey::named(name).otp(1, press);
        let script = format!("echo {otp} | pamtester penstock-test {user} authenticate");
        let output = run_to_end(&mut in_place_of_system_files(self.directory.path(), &script), secs(30));
        assert_eq!(output.status.success(), good, "{user} {name} {press}: {output:?}");
        assert!(output.status.code().is_some(), "it ended by a signal: {output:?}");
    }
}

fn set(path: &Path, user: u32, group: u32, mode: u32) {
    chown(path, Some(user), Some(group)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn keys_of_the_home_directory_are_read_as_the_user_with_all_groups_of_the_user() {
    if root("puts files in place of those in /etc, for the users of a test") == Root::LeftOut {
        return;
    }
    let machine = machine();
    // Only root may read it: root does not read it for the user.
    set(&machine.file("kate"), 0, 0, 0o600);
    machine.expect("kate", "ccccccccccbb", 1, false);
    // A group of kate that is not her first one may read it.
    set(&machine.file("kate"), 0, STAFF, 0o640);
    machine.expect("kate", "ccccccccccbb", 2, true);
    machine.expect("kate", "ccccccccccbb", 2, false);
    set(&machine.file("lukas"), 0, STAFF, 0o640);
    machine.expect("lukas", "ccccccccccbb", 3, false);
    // Their own files.
    for (user, number) in [("kate", USER), ("lukas", USER + 1)] {
        set(&machine.file(user), number, GROUP, 0o600);
    }
    machine.expect("kate", "ccccccccccbb", 4, true);
    machine.expect("lukas", "ccccccccccbb", 5, true);
    machine.expect("kate", "vvvv", 6, false);
}

#[test]
fn a_file_that_others_may_change_or_that_names_a_key_of_another_user_lets_no_user_in() {
    if root("puts files in place of those in /etc, for the users of a test") == Root::LeftOut {
        return;
    }
    let machine = machine();
    set(&machine.file("kate"), USER, GROUP, 0o620);
    machine.expect("kate", "ccccccccccbb", 1, false);
    set(&machine.file("kate"), USER + 1, GROUP, 0o644);
    machine.expect("kate", "ccccccccccbb", 2, false);
    set(&machine.file("kate"), USER, GROUP, 0o600);
    let home = machine.directory.path().join("kate");
    set(&home, USER, GROUP, 0o777);
    machine.expect("kate", "ccccccccccbb", 3, false);
    set(&home, USER, GROUP, 0o700);
    machine.expect("kate", "ccccccccccbb", 4, true);
    // The store gives the key cccccccccccb to alice.
    fs::write(machine.file("kate"), "kate:cccccccccccb:ccccccccccbb\n").unwrap();
    machine.expect("kate", "cccccccccccb", 5, false);
    machine.daemon.tokens.said(&["give", "cccccccccccb", "kate"], "");
    machine.expect("kate", "cccccccccccb", 6, true);
    fs::remove_file(machine.file("kate")).unwrap();
    machine.expect("kate", "ccccccccccbb", 7, false);
    // A link to a file of root.
    std::os::unix::fs::symlink("/etc/shadow", machine.file("kate")).unwrap();
    machine.expect("kate", "ccccccccccbb", 8, false);
}
