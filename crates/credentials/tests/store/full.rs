//! A disk that is full: nothing is good until there is room.

use std::fs;
use std::path::Path;
use std::process::Command;

use credentials::Store;

use super::{enrol, last, place, press};

const DIRECTORY: &str = "PENSTOCK_OTP_FULL_DIRECTORY";

/// In a mount namespace of its own, with a small file system: not a test by itself.
#[test]
fn fills_a_small_file_system() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let mut store = Store::create(place(directory), None).unwrap();
    enrol(&mut store, "cccc");
    assert!(press(&mut store, "cccc", 1).unwrap().is_ok());
    let filler = directory.join("filler");
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    // The last page of the journal has room for some more lines.
    let refused =
        (2..200).find_map(|number| press(&mut store, "cccc", number).err().map(|why| (number, why)));
    let (number, why) = refused.unwrap();
    assert!(why.contains("is full: no OTP is accepted until there is room"), "{why}");
    assert!(press(&mut store, "cccc", number + 1).is_err(), "and no other one");
    let known = last(&Store::open(place(directory)).unwrap(), "cccc").unwrap();
    assert!(known >= number - 1, "what was good is known: {known}");
    fs::write(&filler, "").unwrap();
    assert!(press(&mut store, "cccc", number + 2).unwrap().is_ok());
    assert_eq!(last(&Store::open(place(directory)).unwrap(), "cccc"), Some(number + 2));
    println!("filled and emptied");
}

#[test]
fn a_full_disk_accepts_nothing_and_says_so_and_recovers_when_there_is_room() {
    if !nix::unistd::geteuid().is_root() {
        println!("not run: this test mounts a file system, which needs root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k,mode=0700 none \"$0\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full::fills_a_small_file_system", "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("filled and emptied"), "{output:?}");
}
