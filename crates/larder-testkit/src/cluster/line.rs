//! Lines: an exchange among processes, over connections to a hub.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use larder_core::error::ExchangeError;

use crate::cluster::Gather;
use crate::cluster::meeting::Meeting;

/// No message is longer.
const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// Serves so many ranks, each of which connects once, for as long as they stay connected.
pub fn serve(listener: &TcpListener, meeting: &Arc<Meeting>, ranks: usize) -> io::Result<()> {
    for _ in 0..ranks {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut rank = [0; 4];
        stream.read_exact(&mut rank)?;
        let rank = u32::from_le_bytes(rank) as usize;
        if rank >= ranks {
            return Err(io::Error::other(format!("there is no rank {rank} among {ranks}")));
        }
        let seat = meeting.seat(rank);
        thread::spawn(move || {
            // A rank whose connection ends is gone, and its seat with it.
            while let Ok(said) = read(&mut stream) {
                let answered = match seat.gather(&said) {
                    Ok(all) => write_all(&mut stream, &all),
                    Err(error) => {
                        let words = error.to_string();
                        stream.write_all(&[1]).and_then(|()| write(&mut stream, words.as_bytes()))
                    }
                };
                if answered.is_err() {
                    break;
                }
            }
        });
    }
    Ok(())
}

fn write_all(stream: &mut TcpStream, all: &[Vec<u8>]) -> io::Result<()> {
    let mut bytes = vec![0];
    bytes.extend((all.len() as u32).to_le_bytes());
    for said in all {
        bytes.extend((said.len() as u32).to_le_bytes());
        bytes.extend(said);
    }
    stream.write_all(&bytes)
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&[&(bytes.len() as u32).to_le_bytes(), bytes].concat())
}

fn read_count(stream: &mut TcpStream) -> io::Result<usize> {
    let mut count = [0; 4];
    stream.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    if count > MESSAGE_MAX_BYTES {
        return Err(io::Error::other(format!("a message of {count} bytes is none of ours")));
    }
    Ok(count)
}

fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; read_count(stream)?];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A rank's connection to the hub.
#[derive(Debug)]
pub struct Line(Mutex<TcpStream>);

impl Line {
    /// Connects a rank.
    pub fn connect(hub: impl ToSocketAddrs, rank: usize) -> io::Result<Line> {
        let mut stream = TcpStream::connect(hub)?;
        stream.set_nodelay(true)?;
        stream.write_all(&(rank as u32).to_le_bytes())?;
        Ok(Line(Mutex::new(stream)))
    }
}

impl Gather for Line {
    fn gather(&self, said: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut talk = || -> io::Result<Result<Vec<Vec<u8>>, ExchangeError>> {
            write(&mut stream, said)?;
            let mut kind = [0];
            stream.read_exact(&mut kind)?;
            if kind[0] != 0 {
                return Ok(Err(String::from_utf8_lossy(&read(&mut stream)?).into()));
            }
            let count = read_count(&mut stream)?;
            (0..count).map(|_| read(&mut stream)).collect::<io::Result<Vec<_>>>().map(Ok)
        };
        talk().unwrap_or_else(|error| Err(format!("the hub is gone: {error}").into()))
    }

    fn leave(&self) {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(Shutdown::Both);
    }
}
