"""Everything between the crawlers that speak URLFrontier's interface and the messages that their URLs are."""
