//! The exporter: answers Prometheus, on a thread of its own.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tiny_http::{Header, Method, Request, Response, Server};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves a page of statistics at `/metrics` until it is dropped.
pub struct Exporter {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens on an address. Port 0 takes one that is free, which [`Exporter::address`] tells. The
    /// page is made anew for every reader.
    pub fn serve(
        address: impl ToSocketAddrs,
        page: impl Fn() -> String + Send + 'static,
    ) -> io::Result<Exporter> {
        let server = Arc::new(Server::http(address).map_err(io::Error::other)?);
        let listening = Arc::clone(&server);
        let answer = move || {
            for request in listening.incoming_requests() {
                // A reader that went away is no matter of ours.
                let _ = answer(request, &page);
            }
        };
        let thread = thread::Builder::new().name("larder-metrics".to_owned()).spawn(answer)?;
        Ok(Exporter { server, thread: Some(thread) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.server_addr().to_ip()
    }
}

fn answer(request: Request, page: &impl Fn() -> String) -> io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    let is_read = matches!(request.method(), Method::Get | Method::Head);
    if path != "/metrics" || !is_read {
        let sentence = "the statistics are at /metrics\n";
        return request.respond(Response::from_string(sentence).with_status_code(404));
    }
    let response = Response::from_string(page());
    match Header::from_bytes("Content-Type", OPEN_METRICS) {
        Ok(header) => request.respond(response.with_header(header)),
        Err(()) => request.respond(response),
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // Whatever it panicked with was said already.
            let _ = thread.join();
        }
    }
}
