//! Locations of backups on the command line: a directory, a URL, or `-`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Location of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BackupLocation {
    /// Standard input or output.
    Stream,
    Directory(PathBuf),
    /// A URL that begins with `s3://`.
    Object(String),
}

/// Returns a parser of a location on the command line.
pub(crate) fn parser() -> impl TypedValueParser<Value = BackupLocation> {
    OsStringValueParser::new().try_map(parse)
}

/// Returns a parser of the location of a log archive: the path of a directory, or the URL of an object store.
pub(crate) fn archive_parser() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(archive)
}

fn archive(text: OsString) -> Result<PathBuf, String> {
    match parse(text)? {
        BackupLocation::Directory(path) => Ok(path),
        BackupLocation::Object(url) => Ok(url.into()),
        BackupLocation::Stream => Err("an archive cannot be a stream; name its directory".into()),
    }
}

/// Returns the location that `text` names.
pub(crate) fn parse(text: OsString) -> Result<BackupLocation, String> {
    let Some(url) = text.to_str() else { return Ok(BackupLocation::Directory(text.into())) };
    match url {
        "" => return Err("the name is empty; write a directory, file:///PATH or s3://BUCKET/PREFIX".into()),
        "-" => return Ok(BackupLocation::Stream),
        _ => {}
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(BackupLocation::Directory(text.into()));
    };
    match scheme {
        "s3" => Ok(BackupLocation::Object(url.to_owned())),
        "file" if rest.starts_with('/') && !rest.contains(['%', '?', '#']) => {
            Ok(BackupLocation::Directory(rest.into()))
        }
        "file" => Err(format!("{url:?} names no directory; write file:///PATH, or the path alone")),
        _ if scheme.contains('/') => Ok(BackupLocation::Directory(text.into())),
        _ => {
            Err(format!("{scheme:?} is not supported; write a directory, file:///PATH or s3://BUCKET/PREFIX"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_stream_a_directory_or_an_object() {
        let directory = |path: &str| Ok(BackupLocation::Directory(path.into()));
        assert_eq!(parse("-".into()), Ok(BackupLocation::Stream));
        assert_eq!(parse("s3://b/p".into()), Ok(BackupLocation::Object("s3://b/p".into())));
        for path in ["copies/monday", "./-", "a:b", "./x://y"] {
            assert_eq!(parse(path.into()), directory(path));
        }
        assert_eq!(parse("file:///mnt/a b".into()), directory("/mnt/a b"));
        for wrong in ["", "file://", "file://host/x", "file:///a%20b", "gs://b/p", "http://x", "S3://b"] {
            assert!(parse(wrong.into()).is_err(), "{wrong}");
            assert!(archive(wrong.into()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_archive_is_a_directory_or_an_object() {
        for (text, path) in [
            ("/mnt/archive", "/mnt/archive"),
            ("file:///mnt/archive", "/mnt/archive"),
            ("s3://b/log", "s3://b/log"),
        ] {
            assert_eq!(archive(text.into()), Ok(path.into()));
        }
        assert!(archive("-".into()).is_err());
    }
}
