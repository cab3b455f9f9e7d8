"""Serves the shop's pages: each renders a session's state, and each button is one of its elements.

The rules of the shop are not here: an action is a step of the environment. All pages of a customer have one address;
actions are sent there by POST and answered with a redirect. The pages need no script.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from importlib.resources import files
from urllib.parse import quote

from envsuite.core.errors import EnvsuiteError, require_extra
from envsuite.webshop.catalogue import Catalogue
from envsuite.webshop.page.customers import Customer, Customers, option_of
from envsuite.webshop.page.pictures import picture, remote
from envsuite.webshop.page.receipt import receipt
from envsuite.webshop.products import Product
from envsuite.webshop.tasks import HORIZON
from envsuite.webshop.world import BACK, BUY, NEXT, PREVIOUS, SEARCH, SHOWN, SUB_PAGES

with require_extra("`envsuite play webshop --browser` needs Flask and uvicorn", "webshop-play"):
    from flask import Flask, Response, abort, make_response, redirect, render_template, request
    from werkzeug.exceptions import HTTPException

    from envsuite.remote.pages.serving import constant, guard_page, serve_page

__all__ = ["LARGEST_BODY", "create_app", "serve_page"]

LARGEST_BODY = 1 << 18
"""Limit in bytes of a request's body; a query of 10,000 words has about 70,000."""
_OUR_PICTURES = "'self'"
_ANY_PICTURES = "'self' https:"
_WHAT_WENT_WRONG = {
    400: ("That was no request", "The shop did not understand what the browser sent."),
    403: ("This came from elsewhere", "The shop takes orders from its own pages only, and this was none of them."),
    404: ("There is no such page", "The shop has one page, which shows where you are."),
    405: ("There is no such page", "Use the buttons of the shop; this address is not one to open."),
    410: (
        "Your visit is over",
        "The shop does not remember it: it was closed in between, or many others came after you.",
    ),
    413: ("That was too much", f"The shop reads at most {LARGEST_BODY:,} bytes at once. Try fewer words."),
    421: (
        "This is not the shop's name",
        "It goes by the names of this machine only. Start it with --host 0.0.0.0, and it answers to any.",
    ),
    500: ("Something broke in the shop", "That is our fault. What happened stands in the log of the shop."),
}


def create_app(
    catalogue: Catalogue,
    customers: Customers,
    cookie: str = "webshop",
    hosts: Collection[str] | None = None,
    remote_images: bool = False,
) -> Flask:
    """Creates the shop as a WSGI application.

    Args:
        catalogue: The products.
        customers: The customers in the shop.
        cookie: Name of the cookie. Browsers do not distinguish the ports of a machine: two shops need two names.
        hosts: Host names of the shop; requests for others are refused. By default any.
        remote_images: Show the products' own pictures, which the browser fetches from other servers.
    """
    app = Flask("envsuite.webshop.page", static_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=LARGEST_BODY, MAX_FORM_MEMORY_SIZE=LARGEST_BODY)
    app.jinja_options = {"trim_blocks": True, "lstrip_blocks": True}
    style = (files("envsuite.webshop.page") / "style.css").read_text("utf-8")

    def find_customer() -> Customer | None:
        return customers.find(request.cookies.get(cookie, ""))

    def admit_customer(response: Response, customer: Customer) -> Response:
        """Sets the cookie that identifies the customer."""
        response.set_cookie(cookie, customer.key, httponly=True, samesite="Lax", secure=request.is_secure)
        return response

    def perform_action(tool: str, argument: str) -> Response:
        customer = find_customer()
        if customer is None:
            abort(410)
        _check(customer)
        value = request.form.get(argument, "")
        with customer.lock:
            return make_response(redirect(f"/#{_act(customer, tool, argument, value)}", 303))

    images = _ANY_PICTURES if remote_images else _OUR_PICTURES
    policy = (
        f"default-src 'none'; style-src 'self'; img-src {images}; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    guard_page(app, hosts, policy)

    @app.get("/")
    def shop() -> Response:
        if cookie not in request.cookies:
            # No redirect: a browser without cookies would be redirected forever.
            new = customers.admit()
            return admit_customer(make_response(_page(new, remote_images)), new)
        customer = find_customer()
        if customer is None:
            abort(410)
        with customer.lock:
            return make_response(_page(customer, remote_images))

    @app.post("/search")
    def search() -> Response:
        return perform_action("search", "query")

    @app.post("/click")
    def click() -> Response:
        return perform_action("click", "element")

    @app.post("/new")
    def begin_episode() -> Response:
        customer = find_customer()
        _check(customer)
        if customer is None:
            return admit_customer(make_response(redirect("/#query", 303)), customers.admit())
        with customer.lock:
            customer.begin(customer.task_id if request.form.get("task") == "same" else None)
        return make_response(redirect("/#query", 303))

    @app.get("/image/<asin>.svg")
    def product_image(asin: str) -> Response:
        if asin not in catalogue:
            abort(404)
        return constant(picture(catalogue.product(asin)), "image/svg+xml")

    @app.get("/style.css")
    def stylesheet() -> Response:
        return constant(style, "text/css")

    @app.get("/icon.svg")
    def icon() -> Response:
        return constant(render_template("icon.svg"), "image/svg+xml")

    @app.errorhandler(HTTPException)
    def refusal_page(error: HTTPException) -> Response:
        status = error.code or 500
        heading, text = _WHAT_WENT_WRONG.get(status, (error.name, error.description or ""))
        response = make_response(render_template("notice.html", heading=heading, text=text, status=status), status)
        response.headers.extend({name: value for name, value in error.get_headers() if name == "Allow"})
        return response

    @app.errorhandler(EnvsuiteError)
    def error_page(error: EnvsuiteError) -> Response:
        app.logger.error("%s", error)
        return make_response(
            render_template("notice.html", heading=_WHAT_WENT_WRONG[500][0], text=str(error), status=500), 500
        )

    return app


def _check(customer: Customer | None) -> None:
    """Refuses requests sent by another site, by the form's token."""
    # As bytes: compare_digest accepts only ASCII texts.
    if customer and not secrets.compare_digest(request.form.get("token", "").encode(), customer.token.encode()):
        abort(403)


def _act(customer: Customer, tool: str, argument: str, value: str) -> str:
    """Executes a form's action; returns the part of the page to show next."""
    session = customer.env.session
    if request.form.get("visit") != str(customer.visits):
        customer.refuse("that page was out of date; this is where you are")
    elif not session.done:
        customer.act(tool, argument, value)
        if customer.message and not customer.refused:
            return _place(session.product, *option_of(session, value))
    return "query" if session.state.page == "search" else "main"


def _place(product: Product, name: str, value: str) -> str:
    """Returns the id of an option's button."""
    return f"option-{list(product.options).index(name)}-{product.options[name].index(value)}"


def _page(customer: Customer, remote_images: bool) -> str:
    """Renders the customer's current page."""
    session = customer.env.session
    state = session.state

    def image(product: Product, chosen: tuple[tuple[str, str], ...] = ()) -> str:
        address = remote(product, (value for _, value in chosen)) if remote_images else None
        return address or f"/image/{quote(product.asin, safe='')}.svg"

    names = {"search": "search.html", "results": "results.html", "item": "item.html", "done": "done.html"}
    return render_template(
        names.get(state.page, "about.html"),
        customer=customer,
        session=session,
        state=state,
        elements=session.elements(),
        element_of={pair: element for element, pair in session.choices().items()} if state.page == "item" else {},
        image=image,
        place=_place,
        first=(state.number - 1) * SHOWN + 1,
        horizon=HORIZON,
        receipt=receipt(session) if session.done else None,
        names={"search": SEARCH, "back": BACK, "next": NEXT, "previous": PREVIOUS, "buy": BUY, "about": SUB_PAGES},
    )
