//! The home directory that a lab gives its clients.

use std::path::Path;

/// Returns true if `home` is the home directory that a lab gives its clients (below the path in the variable `LAB`). It
/// has no files of the user, and is removed with the lab.
#[must_use]
pub fn is_inside(home: &str) -> bool {
    std::env::var_os("LAB")
        .is_some_and(|lab| !lab.is_empty() && Path::new(home) == Path::new(&lab).join("home"))
}
