//! Backups and log archives of an Azekura store in an object store, such as S3.
//!
//! A backup is one object, `PREFIX/backup.azk`, with the same bytes as the file of a backup in a directory.
//! This crate only transfers these bytes; the `azekura` crate makes and checks backups and increments.
//!
//! ```
//! use std::sync::Arc;
//!
//! use azekura::{Database, Restore, TableDefinition};
//! use azekura_object_store::BackupObject;
//! use object_store::memory::InMemory;
//!
//! const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
//!
//! # fn main() -> Result<(), azekura_object_store::Error> {
//! # let dir = tempfile::tempdir().expect("a directory");
//! let db = Database::in_memory()?;
//! db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
//! // With the feature `s3`: BackupObject::from_url("s3://bucket/monday")?
//! let monday = BackupObject::new(Arc::new(InMemory::new()), "monday")?;
//! monday.write(db.backup())?;
//!
//! monday.restore(Restore::new().verify(true), dir.path().join("shop.azk"))?;
//! let copy = Database::open(dir.path().join("shop.azk"))?;
//! assert_eq!(copy.read(|s| s.table(&STOCK)?.get("rice"))?, Some(7));
//! # Ok(())
//! # }
//! ```
//!
//! - **OBJECT-1** The object exists only when the backup is complete: the object store makes it visible by
//!   one request, which follows the end block. A failed or killed upload leaves no object.
//! - **OBJECT-2** An upload or a download has only a few parts in memory, and none on disk.
//!
//! | module | noun |
//! |---|---|
//! | `error` | errors, which name the object |
//! | `object` | a backup in an object store |
//! | `archive` | a log archive in an object store |
//! | `upload` | the writer: parts that are uploaded while the next one fills |
//! | `download` | the reader: ranges, one ahead |
//! | `url` | URLs, and S3 with the environment of the AWS SDKs |

#![forbid(unsafe_code)]

mod archive;
mod download;
mod error;
mod object;
mod upload;
#[cfg(feature = "s3")]
mod url;

pub use archive::ArchiveObjects;
pub use download::ObjectReader;
pub use error::Error;
pub use object::BackupObject;
