//! Names of the hosts.

/// `lab001`; four digits if there are 1,000 hosts or more.
pub(crate) fn host_name(number: usize, hosts: usize) -> String {
    let width = hosts.to_string().len().max(3);
    format!("{PREFIX}{:0width$}", number + 1)
}

/// Prefix of all names, and name of the group of all hosts.
pub(crate) const PREFIX: &str = "lab";
