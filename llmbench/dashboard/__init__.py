"""One page that shows what run files say: collect reads them, sections make tables of them, page and markdown write them down."""
