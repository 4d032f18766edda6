//! The reason in the sources of an error.

use std::io;
use std::path::Path;

use azekura_base::TxnId;

/// Returns the file of a damaged page for a message, if the error has it.
pub(super) fn of_file(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" of {}", path.display()) }
}

/// Returns the remedy for a damaged file, unless its reason contains another one.
pub(super) fn usual_remedy(reason: &str) -> &'static str {
    if reason.contains("; ") { "" } else { "; use an intact copy of the file, or restore a backup" }
}

/// Returns `true` if the disk or the user's quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns `true` if a file cannot grow: the disk or the user's quota is full, or the file has the largest
/// size.
pub(super) fn cannot_grow(error: &io::Error) -> bool {
    is_full(error) || error.kind() == io::ErrorKind::FileTooLarge
}

/// Returns the message of [`Error::LogFull`](super::Error::LogFull) for this source: a full disk has another
/// remedy than a limit of open files or a missing directory.
pub(super) fn why_full(source: &(dyn std::error::Error + 'static)) -> &'static str {
    if is_space_missing(source) {
        "the disk has no space for this change; free space and run it again"
    } else {
        "the system refuses a file that this change needs; nothing was changed: remove the cause and run it \
         again"
    }
}

/// Returns `true` if no error of the system other than a full disk or quota is among the sources.
pub(crate) fn is_space_missing(source: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(source);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|error| !is_full(error)) {
            return false;
        }
        next = error.source();
    }
    true
}

/// Returns the numbers of transactions for a message.
pub(super) fn named(transactions: &[TxnId]) -> String {
    let numbers: Vec<_> = transactions.iter().map(TxnId::to_string).collect();
    match &numbers[..] {
        [] => "transactions that have ended".into(),
        [one] => format!("transaction {one}"),
        more => format!("transactions {}", more.join(", ")),
    }
}

/// Returns the number of open transactions and snapshots for a message.
pub(super) fn in_use(open: usize) -> String {
    if open == 1 {
        "1 transaction or snapshot is open".into()
    } else {
        format!("{open} transactions or snapshots are open")
    }
}

/// Returns a number of times for a message.
pub(super) fn times(number: u32) -> String {
    if number == 1 { "once".into() } else { format!("{number} times") }
}

/// Returns the name of an encryption key with this id for a message.
pub(super) fn its_key(id: &str) -> String {
    if id.is_empty() { "its key".into() } else { format!("the key {id:?}") }
}

/// Returns the message of an error and of its sources, outermost first.
pub(crate) fn full_message(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        message.push_str(": ");
        message.push_str(&error.to_string());
        source = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use azekura_buffer::StoreError;
    use azekura_wal::AppendError;

    #[test]
    fn transactions_have_plain_numbers() {
        let deadlock = Error::Deadlock { txn: TxnId(9), cycle: vec![TxnId(4), TxnId(9)] };
        assert!(deadlock.to_string().contains("between transactions 4, 9;"), "{deadlock}");
        let holders = |numbers: &[u64]| numbers.iter().copied().map(TxnId).collect::<Vec<_>>();
        let timeout =
            |numbers: &[u64]| Error::LockTimeout { txn: TxnId(9), waited_ms: 5, holders: holders(numbers) };
        assert!(timeout(&[4]).to_string().contains("held by transaction 4;"));
        assert!(timeout(&[]).to_string().contains("held by transactions that have ended;"));
        assert!(timeout(&[4]).to_string().contains("or raise `lock_timeout`"));
        let in_use = |transactions| Error::StillInUse { transactions }.to_string();
        assert!(in_use(1).contains("1 transaction or snapshot is open;"), "{}", in_use(1));
        assert!(in_use(2).contains("2 transactions or snapshots are open;"), "{}", in_use(2));
    }

    #[test]
    fn a_damaged_file_is_named_with_one_remedy() {
        let store = Path::new("/shop.azk");
        let page = Error::damaged(azekura_base::PageId(3), "no node".into()).in_store(store).to_string();
        assert!(page.contains("/shop.azk/pages") && page.contains("restore a backup"), "{page}");
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        let begin = AppendError::Begin { path: "/shop.azk/wal".into(), source: source() };
        let begin = Error::from(begin).in_store(store).to_string();
        assert_eq!(begin, "cannot begin the log in /shop.azk/wal");
        let full = AppendError::Full { path: "/shop.azk/wal/00".into(), needed: 4096, source: source() };
        assert!(full_message(&Error::from(full)).contains(" in /shop.azk/wal/00: "));
        let action = "sync";
        let first = StoreError::Io {
            action,
            path: Path::new("dw").into(),
            page: None,
            offset: 0,
            source: source().into(),
        };
        let failed = Error::from(StoreError::Failed { first: first.into() }).in_store(store).to_string();
        assert!(
            failed.contains(" of /shop.azk/pages failed") && failed.contains("open it again"),
            "{failed}"
        );
        let file = |reason: &str| {
            Error::Corrupt { path: "log-1".into(), offset: 7, reason: reason.into() }.to_string()
        };
        let usual =
            "log-1 is damaged at byte 7: cut off; use an intact copy of the file, or restore a backup";
        assert_eq!(file("cut off"), usual);
        assert_eq!(file("cut off; copy it back"), "log-1 is damaged at byte 7: cut off; copy it back");
    }

    /// A message names no Rust function, because programs in other languages show it, too.
    #[test]
    fn messages_have_no_names_of_rust() {
        let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(dir) = dirs.pop() {
            for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    dirs.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                    let code = line.split(" // ").next().unwrap();
                    let quoted = code.split('`').skip(1).step_by(2);
                    let is_method = |name: &&str| name.starts_with(char::is_uppercase) && name.contains("::");
                    let found = quoted.filter(is_method).collect::<Vec<_>>();
                    assert!(found.is_empty(), "{}: {found:?}", path.display());
                }
            }
        }
    }

    #[test]
    fn only_a_full_disk_asks_for_space() {
        const ENOENT: i32 = 2;
        const EMFILE: i32 = 24;
        const ENOSPC: i32 = 28;
        let refused = |errno: i32| {
            let source = io::Error::from_raw_os_error(errno);
            full_message(&Error::from(AppendError::Full { path: "wal/00".into(), needed: 4096, source }))
        };
        assert!(refused(ENOSPC).contains("free space"), "{}", refused(ENOSPC));
        for errno in [ENOENT, EMFILE] {
            let said = refused(errno);
            assert!(said.starts_with("the system refuses a file") && !said.contains("space"), "{said}");
            assert!(said.contains(&format!("os error {errno}")), "{said}");
        }
    }
}
